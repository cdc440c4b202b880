"""A service for exported models over HTTP: the Open Inference Protocol, image uploads, metrics and a page to try it.

One module per job: `server` (connections, signals), `app` (routes), `protocol` and `binary` (the Open Inference
Protocol's requests and answers), `bodies` (reading within limits), `uploads` (pictures as they are), `batching`,
`models`, `watch`, `metrics`, `statistics`, `drifting`, `logs`, `openapi` and `pages`. It needs the extra `[serve]`.
"""
