"""The only place that imports pyspark: session, source, classification, sinks, strategies."""
