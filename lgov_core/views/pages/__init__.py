"""The data of the window's pages (docs/reference/window-api.md) as plain JSON values, from stores and run folders."""
