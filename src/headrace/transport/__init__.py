"""SPEAK to Kafka, any Kafka: topics, records, groups, transactions.

Nothing here knows how a cluster is run: an address and client properties are all it needs. Nothing here prints.
"""
