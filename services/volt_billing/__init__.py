"""Billing: may it start, and what is owed?"""
