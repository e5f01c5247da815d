#!/bin/bash
# The shutdown script of a TPU VM: it has the agent save, and waits for that. Google runs it before it sends SIGTERM to anything; a spot
# VM is off 30 seconds later.
pid="${HOME:-/root}/tpulm/agent.pid"
kill -TERM "$(cat "$pid")" && for _ in {1..25}; do [ -e "$pid" ] || exit 0; sleep 1; done
