"""Every message, subject, stream, id and unit. Nothing else in VOLT defines one."""
