"""Cloud Storage: the JSON API, and the XML API's downloads."""
