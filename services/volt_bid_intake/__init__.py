"""Bid-intake: is this command well formed, canonical and allowed? It answers every one, and keeps the answers."""
