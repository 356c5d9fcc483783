"""`read_collection` by the name under which scripts know it; its module is readers/collections.py."""

from sextant.environments.readers.collections import read_collection as read_collection
