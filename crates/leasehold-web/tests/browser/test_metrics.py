"""Metrics, read by Prometheus' own parser."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from programs import Dashboard, Queue

Serve = Callable[..., Dashboard]


def test_metrics_are_accepted_by_a_prometheus_parser(queue: Queue, serve: Serve) -> None:
    queue.submit_many([{"task_type": "good"}] * 3 + [{"task_type": "bad"}])
    queue.work({"good": queue.program("done.sh", "echo '{}'"), "bad": queue.program("bad.sh", "exit 65")})
    queue.submit("nobody")
    dashboard = serve(queue)
    dashboard.has_read(5)
    families = {family.name: family for family in text_string_to_metric_families(dashboard.get("/metrics"))}

    tasks = {sample.labels["status"]: sample.value for sample in families["leasehold_tasks"].samples}
    counts = queue.counts()
    assert {status: tasks.get(status, 0) for status in counts} == counts
    assert families["leasehold_tasks_due"].samples[0].value == 1
    assert families["leasehold_build_info"].samples[0].labels["version"]
    for name, family in families.items():
        assert name.startswith("leasehold_"), name
        assert family.documentation, f"{name} has no help"
        assert family.type in ("gauge", "counter"), name
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples), name
            assert all(sample.value >= 0 for sample in family.samples), name
    requests = families["leasehold_store_requests"].samples
    assert requests and all({"verb", "purpose", "outcome"} <= set(sample.labels) for sample in requests)
    assert "leasehold_store_cost_usd" in families
    assert "leasehold_sample_age_seconds" in families
