"""The window: a local web page on stores and runs (`lgov view`), its API (API.md) and the exported file.

The door is `lgov_core.views.web.app.create_window_app`.
"""
