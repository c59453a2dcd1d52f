"""What is pinned, against known vulnerabilities."""
