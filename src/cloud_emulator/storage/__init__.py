"""Cloud Storage: the JSON API, and the XML API's downloads.

`api` parses a request, and `store` carries it out on the `objects` that it keeps; `listing` makes the pages of listings.
"""
