"""Gateway: turns HTTP into commands and the log into views, and decides nothing."""
