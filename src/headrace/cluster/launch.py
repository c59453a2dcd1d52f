"""What a process of the cluster is started with: the settings in force, Java, jars and class archives."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from headrace.config import Config
from headrace.progress import SILENT, Progress
from headrace.runtime import ClassArchive, JarCache, Java, default_cache, find_java


class Launch:
    """Java and the jars are looked for when they are first needed; missing jars are downloaded then."""

    def __init__(self, config: Config, progress: Progress = SILENT) -> None:
        self.config = config
        self.progress = progress
        self.cache = config.runtime.cache or default_cache()
        self.jars = JarCache(self.cache, ivy_settings=config.runtime.ivy_settings, progress=progress)
        self.timeout_s = config.cluster.ready_timeout_s

    @cached_property
    def java(self) -> Java:
        return find_java(self.config.runtime.java_home)

    @cached_property
    def kafka(self) -> ClassArchive:
        """The class path of a broker, and its archive."""
        return self._archive("kafka")

    @cached_property
    def connect(self) -> ClassArchive:
        """The class path of a Connect worker, and its archive."""
        return self._archive("connect")

    def _archive(self, name: Literal["kafka", "connect"]) -> ClassArchive:
        return ClassArchive(self.cache, name, self.java, self.jars.classpath(name, self.java))
