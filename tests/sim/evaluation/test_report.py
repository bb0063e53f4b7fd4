import json
import re
from dataclasses import replace

import pytest

from sim.evaluation.adastop import AdaStop, AdaStopConfig
from sim.evaluation.comparison import compare_all, read_result
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import digest, protocol_statement
from sim.evaluation.report import write_report
from tests.sim.evaluation.test_evaluate import LINE, run_line


@pytest.fixture
def results(tmp_path):
    folders = [tmp_path / name for name in ("first", "second<b>")]
    for folder in folders:
        folder.mkdir()
        run_line(folder, EvaluateConfig(videos=2))
    return [read_result(folder) for folder in folders]


def test_page_shows_failures_of_all_agents_before_any_success(tmp_path, results):
    write_report(tmp_path / "report.html", results, compare_all(results))
    page = (tmp_path / "report.html").read_text()
    sources = re.findall(r"<video src='([^'#]+)", page)
    assert [source.rpartition("/")[2] for source in sources] == ["failure-1.mp4"] * 2 + [
        "success-0.mp4"
    ] * 2
    assert (tmp_path / sources[0]).is_file()
    assert page.index("failure-1.mp4") < page.index("success-0.mp4") < page.index("<h2>Scores")


def test_page_tells_both_intervals_and_the_protocol_in_full(tmp_path, results):
    write_report(tmp_path / "report.html", results)
    page = (tmp_path / "report.html").read_text()
    # Of 3 of 6: Wilson (3 + 1.9207 -+ 1.96 sqrt(1.5 + .9604)) / 9.8415, Clopper-Pearson from
    # tables.
    assert "0.188 to 0.812" in page
    assert "0.118 to 0.882" in page
    assert digest(protocol_statement(LINE)) in page
    for key in ("first_seed", "max_steps", "denoising_steps", "n_action_steps"):
        assert f"&quot;{key}&quot;" in page


def test_page_needs_no_network_and_names_are_escaped(tmp_path, results):
    write_report(tmp_path / "report.html", results)
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"(src|href)='?\"?https?:", page)
    assert "<script" not in page
    assert "second<b>" not in page.replace("second&lt;b&gt;", "")


def test_checkpoints_of_one_training_make_a_learning_curve(tmp_path, results):
    steps = {results[0].name: 1000, results[1].name: 2000}
    write_report(tmp_path / "curve.html", results, steps=steps)
    write_report(tmp_path / "one.html", results, steps={results[0].name: 1000})
    assert "training steps" in (tmp_path / "curve.html").read_text()
    assert "training steps" not in (tmp_path / "one.html").read_text()


def test_page_says_why_there_are_no_videos(tmp_path, results):
    blind = replace(results[0], table={**results[0].table, "videos": [], "no_videos": "no OpenGL"})
    write_report(tmp_path / "report.html", [blind])
    page = (tmp_path / "report.html").read_text()
    assert "no videos, no OpenGL" in page
    assert "<video" not in page


def test_page_tells_what_adastop_decided_and_what_not(tmp_path, results):
    test = AdaStop(["first", "other", "third"], AdaStopConfig(n=5, stages=1))
    decisions = test.add(
        {"first": [0, 1, 2, 3, 4], "other": [30, 31, 32, 33, 34], "third": [0, 1, 2, 3, 4]}
    )
    write_report(tmp_path / "report.html", results, adastop=(test, decisions))
    page = (tmp_path / "report.html").read_text()
    assert "<tr><td>other<td>first<td>+30.000<td>5</tr>" in page
    assert "<tr><td>first<td>third<td>not significant<td>5</tr>" in page


def test_result_read_back_is_what_was_written(results):
    written = json.loads((results[0].folder / "episodes.json").read_text())
    assert results[0].table == written
    assert results[0].column("seed") == [0, 1, 2, 3, 4, 5]


def test_page_tells_which_specifications_are_satisfied(tmp_path, results):
    specified = tmp_path / "specified"
    specified.mkdir()
    run_line(specified, EvaluateConfig(videos=0, specifications={"small": "place < 450"}))
    write_report(tmp_path / "report.html", [*results, read_result(specified)])
    page = (tmp_path / "report.html").read_text()
    assert "<code>place &lt; 450</code>" in page
    for cell in ("5 of 6", "0.833", "0.436 to 0.970", "-50"):
        assert f">{cell}<" in page


def test_page_without_specifications_has_no_section_about_them(tmp_path, results):
    write_report(tmp_path / "report.html", results)
    assert "Specifications" not in (tmp_path / "report.html").read_text()
