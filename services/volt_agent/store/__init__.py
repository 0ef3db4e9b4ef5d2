"""The object store of checkpoints: one port, an implementation each for JetStream, S3 and a folder."""
