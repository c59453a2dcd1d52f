"""What every process that headrace starts stands on: a Java, verified jars, class archives, process care.

Both the cluster and the pipelines start JVMs; neither may know the other, so what they share lives here.
"""
