"""Workers: background tasks of a server, such as delivering webhooks and notifications.

Each is a loop of work that continues after a failed round (`background_tasks`). `webhooks` delivers
to other servers, `notifications` and `notifiers` notify people, `run_updates` follows the log for
all of them.

May import: operations and everything below. Started by `http/server.py`.
"""
