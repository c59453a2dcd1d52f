"""COMPUTE on Spark: records of any Kafka, decoded, checked and shaped into tables and topics, every row accounted for.

The room knows an address of Kafka, an address of a registry and a Spark master; who runs them is no concern of it.
"""
