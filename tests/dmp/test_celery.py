"""Celery as it is, with a worker: tasks for later wait in the broker; retries; results by its rpc backend."""

from typing import Any

import pytest

from tests.dmp.served import PATIENCE_SECONDS, Served

celery = pytest.importorskip("celery", reason="needs celery")


@pytest.mark.filterwarnings("default")
def test_tasks_for_later_are_in_no_workers_hands_and_hold_up_none_to_be_done_now(server: Served) -> None:
    from celery.contrib.testing.worker import start_worker
    from kombu import Queue

    app = celery.Celery("t", broker=f"amqp://127.0.0.1:{server.port}", backend="rpc://", set_as_current=False)
    app.conf.update(
        task_default_queue="tasks",
        task_queues=[Queue("tasks", queue_arguments={"x-eta-header": "eta"})],
        broker_heartbeat=1,  # its loop looks whether it is to stop at each
    )

    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task(bind=True)
    def third_time(self: Any) -> int:
        if self.request.retries < 2:
            raise self.retry(countdown=0.01)
        return int(self.request.retries)

    for _ in range(50):  # more than the worker would have room for
        double.apply_async((1,), countdown=3600, ignore_result=True)
    queue = server.broker.queues[b"tasks"]
    with start_worker(app, perform_ping_check=False, pool="solo", shutdown_timeout=PATIENCE_SECONDS):
        assert double.delay(4).get(timeout=PATIENCE_SECONDS) == 8
        assert third_time.delay().get(timeout=PATIENCE_SECONDS) == 2
        assert server.do(lambda: (queue.later.count, queue.takers.count)) == (50, 1)
    app.close()
    assert server.crashes == 0
