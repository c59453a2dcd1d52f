"""What a pipeline keeps on disk, read without a JVM: ledger, checkpoint, status, dead letters."""
