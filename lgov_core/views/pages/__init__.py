"""The data of the window's pages (docs/window-api.md) as plain JSON values, from stores and run folders; nothing of HTTP."""
