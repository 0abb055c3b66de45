"""`rankscope studio`: a page on this machine that asks the engine while a job is edited.

Input: requests of the page, a scenario as text or as values in each. Output: the answers of the command line as JSON,
and parts of pages that `viz` draws.
Start: `server.app`.

The process that answers requests never simulates. `server` (routes) reads the `fields` of a `question` and hands it to
a `lane`: a warm `worker` process, in which a tab's newest question replaces older ones, replaced itself if it hangs.
`access`: which requests are served, and what the page may load. `command`, `serving`, `link`: start and address.

In the worker: `answers` (kinds of questions), `views` (parts of the page), `problems` (all that is wrong in a job),
`degrees` (values of each degree, and why others are refused), `catalogue` (models, machines, options, keys), `exchange`
(files in and out), `remedies` (what takes many simulations). `searching`: a search in a process of its own.
The page itself is in `page/`: plain modules, nothing is built.
"""
