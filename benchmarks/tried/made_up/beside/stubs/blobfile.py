"""Stands in for blobfile: paths are those of this machine."""

from os import listdir
from os.path import basename, dirname, exists, isdir, join

BlobFile = open

__all__ = ["BlobFile", "basename", "dirname", "exists", "isdir", "join", "listdir"]
