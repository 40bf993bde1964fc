"""The server: state machine, queue delivery, API. Import the modules; this package's import stays cheap."""
