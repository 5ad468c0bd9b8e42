"""The JSON of the model APIs: chat completions, completions, Responses, Messages.

`apis.APIS` lists them. Requests are read into `ChatRequest`, replies are read from upstreams and written to clients.
"""
