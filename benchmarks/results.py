"""Render docs/results.md, the table of docs/performance.md and the README's record from
docs/results.

python benchmarks/results.py          # write it
python benchmarks/results.py --check  # fail when it is out of date
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"
DOCS = README.parent / "docs"
RECORD = "<!-- the record, as benchmarks/results.py writes it -->"


def load(name: str) -> Any:
    return json.loads((DOCS / "results" / f"{name}.json").read_text("utf-8"))


def transfer() -> str:
    lines = [
        "## Whole experiments",
        "",
        "What `headswap transfer` reports (`python benchmarks/transfer.py --out "
        "docs/results/transfer.json`). Intervals are 95%, over test texts and over seeds.",
    ]
    for name, found in load("transfer").items():
        lines += experiment(name, found)
    return "\n".join(lines)


def experiment(name: str, found: dict[str, Any]) -> list[str]:
    """The command, the verdict and the arms of one experiment; its votes where it has some."""
    lines = ["", f"### {name}", "", "```sh", found["command"], "```", "", found["verdict"], ""]
    told = any("accuracy_without_leaks" in row for row in found["arms"])
    head = "| arm | labels | test accuracy | over texts | over seeds |"
    lines += [head + " without leaks |" * told, "|---|---|---|---|---|" + "---|" * told]
    for row in found["arms"]:
        seeds = row["over_seeds"]
        shown = "–" if seeds is None else f"{seeds[0]:.3f} to {seeds[1]:.3f}"
        lines.append(
            f"| {row['name']} | {row['labels']:,} | {row['accuracy']:.3f} | "
            f"{span(row['over_texts'])} | {shown} |"
            + (f" {row['accuracy_without_leaks']:.3f} |" if told else "")
        )
    votes = found.get("votes", [])
    if votes:
        lines += ["", "| seeds that vote | accuracy | over texts | over linear | without leaks |"]
        lines += ["|---|---|---|---|---|"]
    for row in votes:
        share = row["linear_share"]
        who = row["name"] + ("" if share is None else f" with {share:.0%} linear")
        over = row["over_linear"]
        gain = f"{row['gain_over_linear']:+.3f} [{over['low']:.3f}, {over['high']:.3f}]"
        lines.append(
            f"| {who} | {row['accuracy']:.3f} | {span(row['over_texts'])} | "
            f"{'–' if row['name'] == 'linear' else gain} | {row['accuracy_without_leaks']:.3f} |"
        )
    worth = [row for row in found.get("worth", []) if row["value"] is not None]
    if worth:
        lines += ["", "| labels on | do the work of as many from scratch | over texts |"]
        lines += ["|---|---|---|"]
    for row in worth:
        high = "" if row["high"] is None else f"{row['high']:,.0f}"
        reach = f"{row['low']:,.0f} to {high}" if high else f"{row['low']:,.0f} and more"
        lines.append(f"| {row['labels']:,} on {row['arm']} | {row['value']:,.0f} | {reach} |")
    return lines


def span(bounds: Sequence[float]) -> str:
    return f"{bounds[0]:.3f} to {bounds[1]:.3f}"


def records() -> str:
    found = load("records")
    every, others = (row["ratings"] for row in load("linear-ratings")["models"].values())
    lines = [
        "## Records",
        "",
        "What `headswap transfer` finds on well-known tasks, on one GPU. Rates are chosen on "
        "validation; every arm is scored on test once. `python benchmarks/records.py --only TASK "
        "--out docs/results/records.json` makes them, with the options that stand beside each.",
    ]
    lines += experiment("cls-books (French book reviews)", found.pop("books: all"))
    lines += [
        "",
        "The bases (`--only books --tokens 240000000`, 49 million parameters): `text` has read "
        "French text and reviews; `text-and-ratings` has then learnt to tell the good from the "
        f"bad among {every:,} rated reviews of games, restaurants, films, series and books, "
        f"{every - others:,} of them from Amazon, where cls-books comes from too; "
        "`text-and-ratings-of-others` has not seen those.",
        "",
        *helped(load("records")["books: all"]),
        linear_ratings(),
    ]
    for name, (title, told) in RECORDS.items():
        if name in found:
            lines += [*experiment(title, found.pop(name)), "", told]
    for name, rest in found.items():
        lines += experiment(name, rest)
    return "\n".join(lines)


FLATTERED = (
    "How english-small is fine-tuned was once [chosen by hand]"
    "(experiment.md#english-small-and-french-small) on such snippets, which may flatter it "
    "slightly."
)
RECORDS = {
    "imdb: all": (
        "IMDb",
        "`--only imdb --tokens 240000000 --labels 100,500,2000,25000 --epochs 3`. The base (49 "
        "million parameters, under five minutes on one H200) has read the reviews of aclImdb that "
        "are not for testing, less those that also stand in test. Of the 25,000 labels 3,750 are "
        "held out for validation, and never trained on.",
    ),
    "sst2: all": (
        "SST-2, on english-small",
        "`--only sst2 --labels 100,500,2000,6920 --epochs 8`. Phrases of SST's training sentences "
        f"are not used, only the sentences. {FLATTERED}",
    ),
    "mr: all": (
        "MR, on english-small",
        "`--only mr --labels 100,500,2000,6920 --epochs 8`. MR has no splits: a quarter is for "
        f"testing, and its figures are not those of ten folds. {FLATTERED}",
    ),
    "books-small: all": (
        "cls-books, on french-small",
        "`--only books-small --labels 100,500,1600 --device cpu`: an hour and a half on two CPU "
        "cores. french-small has read novels, debates, web documentation and single sentences, "
        "and no review: it buys little here, and the linear model stays ahead. Compare the base "
        "of the first table, which has read reviews.",
    ),
}


def helped(found: dict[str, Any]) -> list[str]:
    """What each idea brought on cls-books with all labels."""
    most = max(row["labels"] for row in found["arms"])
    arm = {row["name"]: row["accuracy"] for row in found["arms"] if row["labels"] == most}
    alone = {row["name"]: row["accuracy"] for row in found["votes"] if row["linear_share"] is None}
    mixed = {row["name"]: row["accuracy"] for row in found["votes"] if row["linear_share"]}
    bases = ("text", "text-and-ratings-of-others", "text-and-ratings")
    steps = [
        ("text to pretrain on", arm["scratch"], arm["text"]),
        ("other people's ratings first, none of Amazon's", arm["text"], arm[bases[1]]),
        ("Amazon's ratings too", arm[bases[1]], arm[bases[2]]),
        *((f"{found['seeds']} seeds that vote ({name})", arm[name], alone[name]) for name in bases),
        *((f"their vote and the linear model's ({name})", alone[name], mixed[name])
          for name in bases),
    ]  # fmt: skip
    lines = ["What each idea brought:", "", "| idea | from | to | gain |", "|---|---|---|---|"]
    for idea, before, after in steps:
        lines.append(f"| {idea} | {before:.3f} | {after:.3f} | {after - before:+.3f} |")
    return lines


def linear_ratings() -> str:
    """The linear model's share of the ratings, for a comparison that is fair."""
    found = load("linear-ratings")
    lines = [
        "",
        "A linear model that is given the same ratings, and the 1,600 labels "
        f"{found['repeats']} times (`{found['command']} --out docs/results/linear-ratings.json`):",
        "",
        "| linear model with | ratings | test accuracy | over texts | without leaks |",
        "|---|---|---|---|---|",
    ]
    for name, row in found["models"].items():
        lines.append(
            f"| {name} | {row['ratings']:,} | {row['accuracy']:.3f} | {span(row['over_texts'])} | "
            f"{row['accuracy_without_leaks']:.3f} |"
        )
    return "\n".join(lines)


def readme_record() -> str:
    """The record, for the README."""
    found = load("records")["books: all"]
    most = max(row["labels"] for row in found["arms"])
    by_name = {row["name"]: row["accuracy"] for row in found["arms"] if row["labels"] == most}
    votes = {row["name"]: row["accuracy"] for row in found["votes"] if row["linear_share"] is None}
    rated = {name: row["accuracy"] for name, row in load("linear-ratings")["models"].items()}
    return (
        f"On the {most:,} French book reviews of the course where this began, accuracy on "
        f"{found['test_texts']:,} others is {by_name['linear']:.3f} for a linear model and "
        f"{by_name['scratch']:.3f} for a "
        "Transformer of 49 million parameters from scratch. Pretrained for minutes on one GPU, on "
        f"French text and reviews, it is {by_name['text']:.3f}, and {votes['text']:.3f} when its "
        f"{found['seeds']} seeds vote. Having also learnt from other people's ratings, of games, "
        f"restaurants, films and books, it is {by_name['text-and-ratings']:.3f} "
        f"({by_name['text-and-ratings-of-others']:.3f} without Amazon's ratings); a linear model "
        f"that is given the same ratings has {rated['ratings']:.3f} "
        f"({rated['ratings-of-others']:.3f}). "
        "[All figures, with the commands](docs/results.md#records).\n\n" + readme_imdb()
    )


def readme_imdb() -> str:
    found = load("records")["imdb: all"]
    arms: dict[str, dict[int, float]] = {}
    for row in found["arms"]:
        arms.setdefault(row["name"], {})[row["labels"]] = row["accuracy"]
    linear, scratch, pretrained = (arms[name] for name in ("linear", "scratch", "pretrained"))
    few, most = min(pretrained), max(pretrained)
    enough = {
        name: min(size for size, score in pretrained.items() if score > arms[name][most])
        for name in ("linear", "scratch")
    }
    return (
        f"On IMDb's film reviews the label curves lie further apart. Of {most:,} labels a "
        f"Transformer from scratch makes {scratch[most]:.3f} and a linear model "
        f"{linear[most]:.3f}; one that has read the reviews without their labels passes the first "
        f"with {enough['scratch']:,} labels and the second with {enough['linear']:,}. With "
        f"{few:,} labels it is {pretrained[few]:.3f} (linear {linear[few]:.3f}), with all "
        f"{pretrained[most]:.3f}.\n\n"
        "![label curves on IMDb: test accuracy of a linear model, a Transformer from scratch and "
        f"a pretrained one with {few:,} to {most:,} labels](docs/results/imdb.svg)"
    )


def course() -> str:
    found, linear = load("course"), load("linear")
    lines = [
        "## The course's experiment",
        "",
        "The course's model (`course`: classic, 4 layers of width 200, 50,001 tokens, last-token "
        "classifier, 15 epochs at 1e-4) on 1,600 French book reviews, from scratch and from a "
        "causal base pretrained on French text on one GPU. The epoch is chosen on the 400 "
        "validation reviews; the 2,000 test reviews are scored once per run.",
        "",
        "```sh",
        found["command"] + " --out docs/results/course.json",
        "```",
        "",
        "| arm | test accuracy, mean | standard deviation | by seed |",
        "|---|---|---|---|",
    ]
    for arm, figures in found["arms"].items():
        seeds = ", ".join(f"{value:.4f}" for value in figures["test_accuracy"])
        mean, sd = figures["test_accuracy_mean"], figures["test_accuracy_sd"]
        lines.append(f"| {arm} | {mean:.4f} | {sd:.4f} | {seeds} |")
    lines += [
        "",
        "For comparison: the course's own code gives 0.755 from scratch and its reports about "
        "0.80 pretrained. A linear model on TF-IDF features, its strength chosen on validation, "
        f"gives **{linear['test_accuracy']:.4f}**: more than both "
        f"(`{linear['command']} --out docs/results/linear.json`).",
        "",
        "Validation accuracy by epoch, mean over the seeds:",
        "",
        "| epoch | " + " | ".join(found["arms"]) + " |",
        "|---|" + "---|" * len(found["arms"]),
    ]
    curves = {arm: figures["valid_curves"] for arm, figures in found["arms"].items()}
    for index, point in enumerate(curves["scratch"][0]):
        means = [
            sum(curve[index]["accuracy"] for curve in some) / len(some) for some in curves.values()
        ]
        cells = " | ".join(f"{value:.4f}" for value in means)
        lines.append(f"| {point['epoch']:.0f} | {cells} |")
    base = found["base"]["scores"]
    lines += [
        "",
        f"The base read {base['training']['tokens']:,} tokens and ended at a validation loss of "
        f"{base['valid']['loss']:.3f} nats a token.",
    ]
    return "\n".join(lines)


def kills() -> str:
    lines = [
        "## Killed and resumed",
        "",
        "Trainings with dropout, accumulation and frequent saves, killed with SIGKILL and resumed "
        "until they end; then weights, optimizer, metrics and predictions are compared byte by "
        "byte with a run that was never interrupted.",
        "",
        "| command | run | kills | of these inside a file operation | identical |",
        "|---|---|---|---|---|",
    ]
    for name in ("kills-cpu", "kills-cuda"):
        found = load(name)
        for run, tally in found["runs"].items():
            inside = tally["in a file operation"]
            lines.append(
                f"| `{found['command']}` | {run} | {tally['kills']} | {inside} | "
                f"{'yes' if found['identical'] else 'no'} |"
            )
    return "\n".join(lines)


LINEAR_ABOVE = (
    " The linear model on the same labels, at {:.4f}, is above them all: they have read a small "
    "part of what the records' bases read."
)
TUNED_ON = {"french": "cls-books", "imdb": "IMDb"}


def objectives() -> str:
    found = load("objectives")
    budgets = " and ".join(
        f"{made['training_flops']:.2e} on {corpus}" for corpus, made in found["made"].items()
    )
    lines = [
        "## Objectives at equal compute",
        "",
        f"The recipe `small` pretrained with each objective at the same training FLOPs ({budgets}),"
        " one tokenizer a corpus, on one GPU. Losses are the first seed's. Those of "
        "different objectives measure different things and are not comparable with each other; "
        "BLiMP (67,000 English minimal pairs, of which chance gets half) is, within a way of "
        "scoring: the chain rule for causal, pseudo-likelihood for masked models; by seed.",
        "",
        "```sh",
        *(
            f"{made['command']} --out docs/results/objectives.json"
            for made in found["made"].values()
        ),
        "```",
        "",
        "| corpus | objective | tokens | validation loss, first to last | BLiMP causal | "
        "BLiMP masked |",
        "|---|---|---|---|---|---|",
    ]
    for corpus, arms in found["results"].items():
        for name, arm in arms.items():
            if name == "beside":
                continue
            first, last = arm["valid_curve"][0], arm["valid_curve"][-1]
            kinds = [key for key in last if key.startswith("loss_")] or ["loss"]
            losses = "; ".join(
                f"{kind.removeprefix('loss_').replace('loss', name)} "
                f"{first[kind]:.2f} to {last[kind]:.2f}"
                for kind in kinds
            )
            pairs = arm.get("blimp", [])
            cells = [
                ", ".join(f"{one[key]:.3f}" for one in pairs if key in one)
                for key in ("accuracy_causal", "accuracy_masked")
            ]
            lines.append(
                f"| {corpus} | {name} | {arm['tokens']:,} | {losses} | {' | '.join(cells)} |"
            )
    short = [
        f"{name} on {corpus} read {arm['tokens'] / arm['budget']:.0%} of its share"
        for corpus, arms in found["results"].items()
        for name, arm in arms.items()
        if name != "beside" and arm["tokens"] < 0.97 * arm["budget"]
    ]
    if short:
        lines += ["", f"Not quite equal: {', '.join(short)}."]
    tuned = {corpus: arms for corpus, arms in found["results"].items() if "beside" in arms}
    if tuned:
        labels = " and ".join(
            f"{found['made'][corpus]['labels']:,} labels of {TUNED_ON[corpus]}" for corpus in tuned
        )
        lines += [
            "",
            f"Fine-tuned on {labels}: test accuracy by seed of pretraining.",
            "",
            "| task | objective | mean | by seed of pretraining |",
            "|---|---|---|---|",
        ]
    for corpus, arms in tuned.items():
        for name, arm in arms.items():
            if name == "beside":
                for other, row in arm.items():
                    lines.append(f"| {corpus} | {other} | {row['accuracy']:.4f} | |")
                continue
            means = by_base(arm)
            shown = ", ".join(f"{mean:.4f}" for mean in means)
            lines.append(f"| {corpus} | {name} | {statistics.fmean(means):.4f} | {shown} |")
    for corpus, arms in tuned.items():
        bases = {name: by_base(arm) for name, arm in arms.items() if name != "beside"}
        best = max(bases, key=lambda name: statistics.fmean(bases[name]))
        others = max(max(means) for name, means in bases.items() if name != best)
        every = min(bases[best]) > others
        linear = arms["beside"]["linear"]["accuracy"]
        lines += [
            "",
            (
                f"On {TUNED_ON[corpus]} the {best} bases do best: the worst of them is above the "
                "best of all others."
                if every
                else f"On {TUNED_ON[corpus]} no objective stands out: the seeds of {best}, the "
                "best on average, overlap with others'."
            )
            + (LINEAR_ABOVE.format(linear) if linear > max(map(max, bases.values())) else ""),
        ]
    if tuned:
        lines += ["", *answered(tuned)]
    return "\n".join(lines)


def answered(tuned: dict[str, Any]) -> list[str]:
    """The course's question, with the numbers of every task."""

    signs: dict[tuple[str, str], set[bool]] = {}

    def told(one: str, two: str) -> str:
        parts = []
        for corpus, arms in tuned.items():
            before, after = by_base(arms[one]), by_base(arms[two])
            gain = statistics.fmean(after) - statistics.fmean(before)
            signs.setdefault((one, two), set()).add(gain > 0)
            apart = min(after) > max(before) or min(before) > max(after)
            seeds = "the seeds lie apart" if apart else "the seeds overlap"
            parts.append(f"{gain:+.3f} on {TUNED_ON[corpus]} ({seeds})")
        return " and ".join(parts)

    sides, next_sentence = (
        told("causal", "masked"),
        told("masked", "masked and next sentence"),
    )
    depends = all(len(found) > 1 for found in signs.values())
    return [
        "What does causal language modelling lack against masked? At this scale, seeing both sides "
        f"brings {sides}; next-sentence prediction on top of it brings {next_sentence}."
        + (" The sign depends on the task." if depends else "")
    ]


def by_base(arm: dict[str, Any]) -> list[float]:
    """The mean accuracy of each base's classifiers."""
    return [statistics.fmean(seeds) for seeds in arm["accuracy"]]


def optimizers() -> str:
    found = load("optimizers")
    lines = [
        "## AdamW against Muon",
        "",
        "The same causal model on the same batches, each optimizer at the best of its rates "
        f"(`{found['command']} --out docs/results/optimizers.json`), and how far each is from the "
        f"loss that the worse one ends at, {found['goal']:.3f}. The matrices of the layers are "
        "Muon's; the rest is AdamW's in both.",
        "",
        "| optimizer | best rate | last validation loss | steps to that loss | tokens/s |",
        "|---|---|---|---|---|",
    ]
    for name, row in found["optimizers"].items():
        lines.append(
            f"| {name} | {row['rate']:g} | {row['loss']:.3f} | {row['steps_to_goal']:,.0f} | "
            f"{row['tokens_a_second']:,.0f} |"
        )
    lines += [
        "",
        f"Muon takes {found['muon_needs_steps']:.2f} times AdamW's steps and "
        f"{found['muon_needs_time']:.2f} times its time. On a {found['device'].upper()}, "
        "and in minutes: the lead shrinks as trainings get longer, and what is left of it after "
        "hours this does not tell.",
    ]
    return "\n".join(lines)


def start() -> str:
    found = load("start")
    encoding = found["encoding"]
    ours, plain = encoding["megabytes_a_second"].values()
    return "\n".join(
        [
            "## The first step",
            "",
            f"From `headswap train` to the end of its first step on {found['cores']} CPU cores, "
            f"with the recipe `tiny` and {found['text_megabytes']:.1f} MB of text that was never "
            "read before: imports, a new tokenizer, encoding and a first validation included. "
            f"{found['seconds_to_the_first_step']:.1f} s, the median of runs that took "
            f"{found['lowest']:.1f} to {found['highest']:.1f} s. Encoding runs at {ours:.1f} MB/s, "
            f"sentencepiece alone on as many threads at {plain:.1f} MB/s "
            f"(`{found['command']} --out docs/results/start.json`).",
        ]
    )


def memory() -> str:
    found = load("memory")
    lines = [
        "## Memory",
        "",
        "Peak anonymous resident memory of the whole process, libraries included; of pretraining "
        "also when the first step was done, tokenizer and all, and how fast the steps were.",
        "",
        "```sh",
        found["command"] + " --out docs/results/memory.json",
        "```",
        "",
        "| what | peak MiB | in the first half | in the second half | seconds | to the first step "
        "| tokens/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, figures in found.items():
        if name != "command":
            cells = " | ".join(
                f"{figures[key]:,}" if key in figures else ""
                for key in (
                    "peak_mib",
                    "peak_of_first_half_mib",
                    "peak_of_second_half_mib",
                    "seconds",
                    "seconds_to_first_step",
                    "tokens_a_second",
                )
            )
            lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def scoring() -> str:
    found = load("scored-positions")
    lines = [
        "## Only scored positions reach the head",
        "",
        f"Training at the course's shape on {found['threads']} CPU threads, steps interleaved, "
        f"median of {found['repeats']}.",
        "",
        "```sh",
        found["command"] + " --out docs/results/scored-positions.json",
        "```",
        "",
        "| objective | tokens/s | against causal |",
        "|---|---|---|",
    ]
    for name, speed in found["tokens_per_second"].items():
        ratio = speed / found["tokens_per_second"]["causal"]
        lines.append(f"| {name} | {speed:,.0f} | {ratio:.2f}× |")
    return "\n".join(lines)


TRANSLATED = {
    "rdrop": "English to German",
    "plain": "English to German without R-Drop",
    "en-fr": "English to French",
}


def multi30k() -> str:
    lines = [
        "## Multi30k",
        "",
        "`tiny-translate` (2.6 million parameters) on 29,000 pairs, 5,000 updates of 8,000 tokens "
        "on one H200, three seeds, beam 4. Everything was chosen on validation, with one seed: "
        "dropout 0.2 on residuals and none inside sub-layers; and R-Drop's weight of 1, with all "
        "three. The last 8 evaluations are averaged. Both arms were scored on the test sets. "
        "Tokenised lower-case BLEU compares with older papers alone; its words were cut by "
        "Moses' English rules on all sides. Intervals are 95%, over seeds.",
        "",
        "| direction | set | tokenised lower-case BLEU | interval | sacreBLEU | chrF |",
        "|---|---|---|---|---|---|",
    ]
    found = load("multi30k")
    for name, title in TRANSLATED.items():
        for split in ("val", "test_2016_flickr", "test_2017_flickr"):
            if name in found:
                old, new, chrf = (
                    found[name][split][key] for key in ("bleu_tokenized_lowercase", "bleu", "chrf")
                )
                lines.append(
                    f"| {title} | {split} | {old['mean']:.2f} | {old['low']:.2f} to "
                    f"{old['high']:.2f} | {new['mean']:.2f} | {chrf['mean']:.2f} |"
                )
    lines += ["", "```sh"]
    # The recipe had no R-Drop yet when the plain arm was trained.
    now = {"plain": " --set translate.r_drop=0"}
    lines += [found[n]["command"] + now.get(n, "") for n in TRANSLATED if n in found]
    lines += ["```", "", f"sacreBLEU signature: `{found['rdrop']['signature']}`."]
    return "\n".join(lines)


def warm_start() -> str:
    found = load("warm-start")
    lines = [
        "## What pretraining buys a translator",
        "",
        "English to German on Multi30k: the encoder and the embedding of `tiny-translate` from a "
        "masked base that read both sides of the training text unpaired, against random weights. "
        "Three seeds, each with pairs of its own; both arms tried the same two rates.",
        "",
        "```sh",
        found["command"],
        "headswap compare runs/warm/scratch-* runs/warm/pretrained-* --html warm.html",
        "```",
        "",
        found["verdict"],
        "",
        "| arm | pairs | BLEU | over sentences | by seed | rate |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["arms"]:
        low, high = row["over_sentences"]
        seeds = ", ".join(f"{value:.2f}" for value in row["bleu_by_seed"])
        lines.append(
            f"| {row['name']} | {row['pairs']:,} | {row['bleu']:.2f} | {low:.2f} to {high:.2f} | "
            f"{seeds} | {row['rate']:g} |"
        )
    return "\n".join(lines)


def translate_speed() -> str:
    lines = [
        "## Translation speed",
        "",
        "The same weights in Headswap and in an equal Marian model under Hugging Face `generate`, "
        "the same sentences, both sorted by length, each at its best batch size, in turns, medians "
        "of five (`python benchmarks/translate_speed.py RUN --source test_2016_flickr.en.gz "
        "--out docs/results/translate-speed.json`). On the GPU both sides mostly wait for kernels "
        "to be launched.",
        "",
        "| machine | search | Headswap, sentences/s | Hugging Face | ratio | same translations |",
        "|---|---|---|---|---|---|",
    ]
    names = {"cpu": "2 CPU cores", "cuda": "H200"}
    for device, found in load("translate-speed").items():
        for search in ("greedy", "beam 4"):
            row = found[search]
            lines.append(
                f"| {names[device]} | {search} | {row['headswap_sentences_a_second']:,.0f} | "
                f"{row['hugging_face_sentences_a_second']:,.0f} | {row['ratio']:.2f} | "
                f"{row['same_translations']:.1%} |"
            )
    return "\n".join(lines)


def planner() -> str:
    lines = [
        "## The planner against reality",
        "",
        "A training step of models that the calibration never ran, foretold and measured: peak "
        "memory (on a CPU resident above what imports take, on a GPU allocated) and seconds, "
        "on the CPU medians of three tries in turns, on the GPU one try with eight times the "
        "batch (`python benchmarks/planner.py --device cpu --out docs/results/planner.json`).",
        "",
        "| machine | model | parameters | seconds, foretold | measured | off by | MiB, foretold "
        "| measured | off by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    names = {"cpu": "2 CPU cores", "cuda": "H200"}
    for device, rows in load("planner").items():
        for name, row in rows.items():
            said, was = row["foretold"], row["real"]
            lines.append(
                f"| {names[device]} | {name} | {was['parameters']:,.0f} | {said['seconds']:.3f} | "
                f"{was['seconds']:.3f} | {row['seconds']:+.0%} | {said['bytes'] / 2**20:,.0f} | "
                f"{was['bytes'] / 2**20:,.0f} | {row['bytes']:+.0%} |"
            )
    return "\n".join(lines)


def complexity() -> str:
    lines = ["## The cost of a layer", ""]
    lines += [
        "One layer, forward and backward, one sequence of n tokens (`python "
        "benchmarks/complexity.py --device cpu`). Exponents of n are fitted to the last three "
        "lengths.",
    ]
    for path in sorted((DOCS / "results").glob("complexity-*.json")):
        found = json.loads(path.read_text("utf-8"))
        head = [f"{n:,}" for n in found["lengths"]]
        lines += ["", f"### Width {found['width']} on {found['device']}", ""]
        lines += [f"| milliseconds at n = | {' | '.join(head)} | time | FLOPs | memory |"]
        lines += ["|---" * (len(head) + 4) + "|"]
        for facts in found["mixers"]:
            mine = [row for row in found["points"] if row["mixer"] == facts["mixer"]]
            times = " | ".join(f"{1e3 * row['seconds']:.2f}" for row in mine)
            grows = " | ".join(
                f"n^{facts[f'{key}_exponent']:.2f}" for key in ("time", "flops", "memory")
            )
            lines.append(f"| {facts['mixer']} | {times} | {grows} |")
    return "\n".join(lines)


def lengths() -> str:
    found = load("lengths")
    size = found["length"]
    lines = [
        "## Longer than it was trained on",
        "",
        f"One causal model (`tiny`) for each kind of position, trained on windows of {size} tokens "
        f"of {found['corpus']}, then reading the same held-out text in longer windows: nats a "
        "token. A table of learned positions ends where training did.",
        "",
        "```sh",
        found["command"] + " --out docs/results/lengths.json",
        "```",
        "",
        f"| positions | {size} tokens | {2 * size} | {4 * size} |",
        "|---|---|---|---|",
    ]
    for kind, row in found["losses"].items():
        cells = " | ".join("–" if value is None else f"{value:.3f}" for value in row.values())
        lines.append(f"| {kind} | {cells} |")
    return "\n".join(lines)


def heads() -> str:
    lines = [
        "## What each head is worth",
        "",
        "Every attention head switched off in turn, on validation data: what accuracy lost, or "
        "what the loss rose by (`python benchmarks/heads.py`, or `headswap inspect RUN --text … "
        "--heads DATA`).",
    ]
    names = {
        "classifier": "A classifier of cls-books, from scratch",
        "translator": "The Multi30k translator, English to German",
    }
    for name, found in load("heads").items():
        lines += ["", f"### {names[name]}", "", f"{found['figure']} {found['whole']:.4f}.", ""]
        count = max(row["head"] for row in found["rows"]) + 1
        lines += [f"| layer | {' | '.join(f'head {i + 1}' for i in range(count))} |"]
        lines += ["|---" * (count + 1) + "|"]
        for kind in dict.fromkeys(row["kind"] for row in found["rows"]):
            mine = [row for row in found["rows"] if row["kind"] == kind]
            for layer in range(max(row["layer"] for row in mine) + 1):
                cells = [f"{row['lost']:+.4f}" for row in mine if row["layer"] == layer]
                lines.append(f"| {kind} {layer + 1} | {' | '.join(cells)} |")
        lines += ["", f"![what each head is worth](results/heads-{name}.svg)"]
    return "\n".join(lines)


def mixers() -> str:
    lines = [
        "## Attention, recurrence, convolution",
        "",
        "cls-books from scratch with each mixer in the same stack, feed-forwards sized so that all "
        "have the same number of parameters; the better of two rates by validation with the first "
        "seed, three seeds.",
        "",
        "```sh",
        "python benchmarks/mixers.py --out docs/results/mixers.json",
        "```",
        "",
        "| mixer | parameters | rate | validation accuracy | test accuracy | by seed |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in load("mixers").items():
        seeds = ", ".join(f"{value:.4f}" for value in row["by_seed"])
        lines.append(
            f"| {name} | {row['parameters']:,} | {row['rate']:g} | {row['valid']:.4f} | "
            f"{row['test']:.4f} | {seeds} |"
        )
    return "\n".join(lines)


def load_figures() -> str:
    found = load("load")
    together, crowd = found["batching"], found["too_many"]
    slow, huge = found["slow"], found["huge"]
    rates = together["requests_a_second"]
    exported = found.get("batching, exported")
    fast = exported and exported["requests_a_second"]
    answers = ", ".join(f"{count:,} × {status}" for status, count in crowd["answers"].items())
    return "\n".join(
        [
            "## The server under load",
            "",
            "On 2 CPU cores, generator and server together, over the loopback.",
            "",
            "```sh",
            found["command"] + " --out docs/results/load.json",
            "```",
            "",
            "| what | outcome |",
            "|---|---|",
            f"| 32 clients | {rates['together']:.0f} requests/s in batches, "
            f"{rates['one at a time']:.0f} one at a time: {together['ratio']:.2f}× |",
            *(
                [
                    f"| the same classifier exported to int8 | {fast['together']:.0f} requests/s "
                    f"in batches, {fast['one at a time']:.0f} one at a time: "
                    f"{exported['ratio']:.2f}× |"
                ]
                if fast
                else []
            ),
            f"| 500 clients at once, ten times, a queue of 64 | {answers}; resident memory "
            f"{crowd['memory_grew_by']:+.1%} |",
            f"| 200 clients that send a byte a second | {slow['closed']} closed, the last after "
            f"{slow['longest_seconds']:.1f} s; the others' p99 {slow['ratio']:.2f} times |",
            f"| a body of 1 GB, declared | {huge['declared']['status']}, "
            f"{huge['declared']['read_bytes']:,} bytes of it read |",
            f"| the same in chunks | {huge['chunked']['status']}, "
            f"{huge['chunked']['read_bytes']:,} bytes of it read |",
        ]
    )


def inference() -> str:
    found = load("inference")
    lines = [
        "## Classifying on a CPU",
        "",
        f"{found['texts']} reviews, the same weights, in turns, medians of nine, on 2 cores, "
        "against the plain Hugging Face pipeline.",
        "",
        "```sh",
        "python benchmarks/inference.py RUN --texts FILE --out docs/results/inference.json",
        "```",
        "",
        "| texts at a time | with | texts/s | ratio | same labels |",
        "|---|---|---|---|---|",
    ]
    for batch, rows in found.items():
        if batch == "texts":
            continue
        for name, row in rows.items():
            lines.append(
                f"| {batch.removeprefix('batch ')} | {name} | {row['texts_a_second']:.1f} | "
                f"{row['ratio']:.2f} | {row['same_labels']:.1%} |"
            )
    return "\n".join(lines)


WORKLOADS = {
    "causal": "causal pretraining, the course's shape",
    "masked": "masked pretraining, the course's shape",
    "large": "causal pretraining, 768 × 12",
    "large64": "causal pretraining, 768 × 12, a batch of 64",
    "tuning": "fine-tuning on cls-books, one epoch",
}


def speed() -> str:
    names = {"cpu": "2 CPU cores, fp32", "cuda": "one H200, bf16"}
    lines = []
    for device, workloads in load("speed").items():
        lines += ["", f"### {names[device]}", ""]
        lines += ["| workload | with | tokens/s | Headswap is faster by | peak memory |"]
        lines += ["|---|---|---|---|---|"]
        shares = []
        for workload in filter(workloads.get, WORKLOADS):
            rows = workloads[workload]
            ours = rows["headswap"]["seconds"]
            if "share_of_matrix_rate" in rows["headswap"]:
                share = rows["headswap"]["share_of_matrix_rate"]
                shares.append(f"{share:.0%} ({WORKLOADS[workload]})")
            for peer, row in rows.items():
                memory = f"{row['peak_gib']:.2f} GiB" if "peak_gib" in row else ""
                unit = " texts/s" if workload == "tuning" else ""
                lines.append(
                    f"| {WORKLOADS[workload]} | {peer} | {row['a_second']:,.0f}{unit} | "
                    f"{row['seconds'] / ours:.2f}× | {memory} |"
                )
        if shares:
            lines += ["", "Of the rate of a large square product, timed in the same turns, "]
            lines[-1] += f"Headswap's arithmetic reaches {', '.join(shares)}."
    return "\n".join(lines[1:])


def performance() -> str:
    """docs/performance.md with its table made anew."""
    text = (DOCS / "performance.md").read_text("utf-8")
    before, rest = text.split("<!-- speed -->")
    after = rest.split("<!-- /speed -->")[1]
    return f"{before}<!-- speed -->\n\n{speed()}\n\n<!-- /speed -->{after}"


def side_by_side() -> str:
    found = load("side-by-side")
    single, runs = found["single_command_median"], found["rows"][0]["runs"]
    lines = [
        "## Runs side by side",
        "",
        f"A transfer experiment of {found['seeds']} seeds and two arms on cls-books at the "
        f"course's shape, on one H200 (`{found['command']} --out "
        f"docs/results/side-by-side.json`): {runs} "
        "fine-tunings of 15 epochs, with the trials that choose the rates, then the linear model, "
        f"the test and the report. As single commands, {len(found['single_command_seconds'])} of "
        f"which were timed, the fine-tunings would take {single:.1f} s each.",
        "",
        "| | seconds | times as fast as single commands |",
        "|---|---|---|",
        f"| single commands, one after another | {runs * single:.0f} | 1.0 |",
    ]
    for row in found["rows"]:
        way = f"{row['workers']} at a time" if row["workers"] > 1 else "one after another"
        times = runs * single / row["seconds"]
        lines.append(f"| one experiment, {way} | {row['seconds']:.0f} | {times:.1f} |")
    exact = load("side-by-side-exact")
    pairs = exact["valid_accuracy"].values()
    equal = sum(len(set(pair)) == 1 for pair in pairs)
    ways = " and ".join(str(row["workers"]) for row in exact["rows"])
    lines += [
        "",
        "A GPU's attention adds up in another order each time, so two runs with one seed differ, "
        "side by side or not. With `train.deterministic` they do not: of the accuracies of "
        f"{len(pairs)} runs, made {ways} at a time, {equal} are equal (`{exact['command']} "
        "--commands 0 --out docs/results/side-by-side-exact.json`).",
    ]
    return "\n".join(lines)


def parity() -> str:
    lines = [
        "## Exports against their runs",
        "",
        "What the check of each export found on 200 real texts and a few made for it: the largest "
        "difference of a logit, and how many answers (labels, next tokens, translations) are the "
        "same (`python benchmarks/parity.py … --out docs/results/parity.json`).",
        "",
        "| run | target | largest difference | same answers |",
        "|---|---|---|---|",
    ]
    for name, targets in load("parity").items():
        for target, found in targets.items():
            if "refused" in found:
                lines.append(f"| {name} | {target} | refused: {found['refused']} | |")
                continue
            row = found.get("int8", found)
            apart = row.get("largest_difference")
            shown = "" if apart is None else f"{apart:.1e}"
            same = row.get("same_best", row.get("same_outputs"))
            if same is None:
                same = float(row["same_ids"])
            lines.append(f"| {name} | {target} | {shown} | {same:.1%} |")
    return "\n".join(lines)


def optional(*makers: Callable[[], str]) -> list[str]:
    """The sections whose result files are there."""
    found = []
    for maker in makers:
        with suppress(FileNotFoundError):
            found.append(maker())
    return found


def torchrun() -> str:
    lines = [
        "## One process under torchrun",
        "",
        "The same training, plain and under torchrun with one process, in turns, tokens a second "
        "by the training's own count (`python benchmarks/torchrun.py --out "
        "docs/results/torchrun.json`). One process exchanges nothing, so what it costs is its "
        "start.",
        "",
        "| device | recipe | plain | torchrun | cost | same bytes |",
        "|---|---|---|---|---|---|",
    ]
    for device, row in load("torchrun").items():
        speeds = [statistics.median(row["tokens_a_second"][way]) for way in ("plain", "torchrun")]
        lines.append(
            f"| {device} | {row['recipe']} | {speeds[0]:,.0f} | {speeds[1]:,.0f} | "
            f"{row['cost']:+.1%} | {'yes' if row['identical'] else 'NO'} |"
        )
    return "\n".join(lines)


def sharding() -> str:
    found = load("sharding")
    clock, cpu = found["times_as_fast"]["clock"], found["times_as_fast"]["cpu"]
    lines = [
        "## Sharding by two workers",
        "",
        f"`headswap shards` on {found['megabytes']} MB of made-up text (`{found['command']} --out "
        "docs/results/sharding.json`): one worker on one core, and two on two, in turns.",
        "",
        "| workers | seconds by the clock | CPU seconds of the longest | cores busy before |",
        "|---|---|---|---|",
    ]
    busy = found["busy_before"]
    for place, (workers, tries) in enumerate(found["seconds"].items()):
        cells = [
            ", ".join(f"{one[0]:.1f}" for one in tries),
            ", ".join(f"{one[1]:.1f}" for one in tries),
            ", ".join(f"{share:.0%}" for share in busy[place :: len(found["seconds"])]),
        ]
        lines.append(f"| {workers} | {' | '.join(cells)} |")
    lines += [
        "",
        f"By the clock two workers were {clock:.2f} times as fast as one; by their own CPU time, "
        f"which is what free cores would take, {cpu:.2f} times."
        + (
            " Other work kept the cores busy meanwhile, so the clock tells more about that work "
            "than about the workers, and what free cores would do is not shown."
            if min(busy) > 0.3
            else ""
        )
        + f" All results {'are' if found['identical'] else 'are NOT'} the same bytes.",
    ]
    if large := found.get("large"):
        one, four = large["seconds"]["1"], large["seconds"]["4"]
        lines += [
            "",
            f"{large['megabytes']:,} MB by one worker took {one:.0f} s, by four on the same "
            f"{found['cores']} cores {four:.0f} s; the results "
            f"{'are' if large['identical'] else 'are NOT'} the same bytes.",
        ]
    return "\n".join(lines)


def page() -> str:
    head = (
        "# Results\n\nMade by `python benchmarks/results.py` from the files in `docs/results`. "
        "Commands that need a corpus read it from the folder that `HEADSWAP_DATA` names."
    )
    parts = [*optional(records), transfer(), course(), objectives(), multi30k(), warm_start()]
    parts += [translate_speed(), planner(), complexity()]
    parts += optional(start, side_by_side, optimizers, mixers, heads, lengths, parity, inference)
    parts += optional(load_figures)
    parts += [scoring(), kills(), memory(), sharding(), *optional(torchrun)]
    return "\n\n".join([head, *parts]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    readme = README.read_text("utf-8")
    before, _, rest = readme.partition(RECORD)
    _, _, after = rest.partition(RECORD)
    written = {
        DOCS / "results.md": page(),
        DOCS / "performance.md": performance(),
        README: f"{before}{RECORD}\n{readme_record()}\n{RECORD}{after}",
    }
    for target, made in written.items():
        if check and target.read_text("utf-8") != made:
            raise SystemExit(f"{target.name} is out of date: python benchmarks/results.py")
        if not check:
            target.write_text(made, "utf-8")


if __name__ == "__main__":
    main()
