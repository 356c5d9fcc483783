"""`search` for programs of a user's own, by the name under which scripts know it; its module is custom.py."""

from sextant.programs.custom import search as search
