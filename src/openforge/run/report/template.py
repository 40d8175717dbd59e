"""The report's page, a Jinja template. It is rendered with autoescape, so recorded text can never become markup."""

STYLE = """
:root { color-scheme: light; --ink: #0f172a; --soft: #475569; --faint: #94a3b8; --line: #e2e8f0; --paper: #ffffff; --ground: #f6f7f9;
        --accent: #2563eb; --good: #047857; --warn: #b45309;
        --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 28px 80px; }
header h1 { font-size: 30px; line-height: 1.2; margin: 0; letter-spacing: -.02em; }
header p { color: var(--soft); margin: 6px 0 0; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 48px 0 14px; letter-spacing: -.01em; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin-top: 26px; }
.tile { padding: 16px 18px; }
.tile b { display: block; font-size: 25px; line-height: 1.2; font-weight: 650; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.tile span { display: block; margin-top: 3px; }
.tile small { color: var(--soft); }
.pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(500px, 1fr)); gap: 14px; align-items: start; }
.pair .card { padding: 16px 20px 12px; }
h3 { font-size: 15px; margin: 0 0 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 13px; }
th, td { padding: 6px 10px 6px 0; border-top: 1px solid var(--line); }
tr:first-child > * { border-top: 0; }
td.n, th.n { text-align: right; padding: 6px 0 6px 10px; }
.up { color: var(--good); font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(500px, 1fr)); gap: 14px; }
.plots figure { margin: 0; padding: 16px 18px 10px; }
.plots figcaption b { display: block; font-size: 15px; }
.plots figcaption { color: var(--soft); font-size: 13.5px; line-height: 1.4; margin-bottom: 8px; }
.plots figcaption b { color: var(--ink); }
.plots img { width: 100%; height: auto; display: block; }
details.rollout { margin-bottom: 12px; overflow: hidden; }
details.rollout > summary { padding: 13px 18px; cursor: pointer; display: flex; gap: 10px; align-items: baseline; flex-wrap: wrap; }
details.rollout > summary:hover { background: #fafbfc; }
details.rollout[open] > summary { border-bottom: 1px solid var(--line); }
.chip { font-size: 12.5px; padding: 1px 8px; border-radius: 20px; background: #eef2f6; color: var(--soft); white-space: nowrap; }
.chip.good { background: #d1fae5; color: var(--good); }
.chip.bad { background: #fef3c7; color: var(--warn); }
.inside { padding: 16px 18px 8px; }
.task { margin: 0 0 14px; padding-left: 12px; border-left: 3px solid var(--accent); white-space: pre-wrap; overflow-wrap: anywhere; }
.note { color: var(--warn); margin: 0 0 12px; overflow-wrap: anywhere; }
.call { margin: 0 0 16px; }
.call h4 { margin: 0 0 6px; font-size: 13.5px; font-weight: 600; display: flex; gap: 8px; flex-wrap: wrap; align-items: baseline; }
.call h4 small { font-weight: 400; color: var(--soft); }
.text { font: 12.8px/1.65 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; padding: 10px 12px; margin: 0; }
.prompt { background: #f8fafc; color: #475569; border: 1px solid var(--line); border-radius: 8px 8px 0 0;
          max-height: 340px; overflow: auto; }
.prompt.alone { border-radius: 8px; }
.reply { border: 1px solid var(--line); border-top: 0; border-radius: 0 0 8px 8px; background: #fff; }
.reply i { font-style: normal; border-radius: 3px; }
.reply i:hover { outline: 1.5px solid var(--accent); }
.v { font: 600 10px/1 var(--mono); color: #fff; background: var(--accent); border-radius: 4px; padding: 2px 4px;
     margin-right: 3px; vertical-align: 2px; }
.tool { font: 12.8px/1.5 var(--mono); margin: 6px 0 0; color: var(--soft); overflow-wrap: anywhere; }
.tool b { color: var(--accent); }
.scale { display: inline-block; width: 110px; height: 10px; border-radius: 3px; vertical-align: -1px; border: 1px solid var(--line);
         background: linear-gradient(90deg, rgba(234, 88, 12, 0), rgba(234, 88, 12, .7)); }
.legend { color: var(--soft); font-size: 13.5px; margin: -6px 0 14px; }
pre.config { margin: 0; padding: 14px 18px; font: 12.8px/1.55 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; }
summary.plain { padding: 12px 18px; cursor: pointer; }
@media (max-width: 640px) { .plots, .pair { grid-template-columns: 1fr; } main { padding: 24px 14px 60px; } }
@media print { body { background: #fff; } .plots figure, .tile { break-inside: avoid; } }
"""

PAGE = (
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ config.name }} · run report</title>
<style>"""
    + STYLE
    + """</style>
</head>
<body>
<main>
<header>
<h1>{{ config.name }}</h1>
<p>Reinforcement learning of {{ config.model.path }}
with {{ config.train.loss }}, groups of {{ config.rollout.group_size }}, seed {{ config.seed }} · written {{ written }}</p>
</header>
{% if tiles %}
<div class="tiles">
{% for value, label, remark in tiles %}
<div class="card tile"><b>{{ value }}</b><span>{{ label }}</span><small>{{ remark }}</small></div>
{% endfor %}
</div>
{% else %}
<p>No step and no evaluation has been recorded yet.</p>
{% endif %}

{% if summary.evaluations or summary.phases or summary.steps %}
<h2>What came from where</h2>
<div class="pair">
{% if summary.evaluations %}
<div class="card">
<h3>Accuracy on held-out tasks</h3>
<table>
<tr><th>set</th><th>model</th><th class="n">tasks</th><th class="n">accuracy</th><th class="n">gain</th></tr>
{% for name in summary.sets %}
{% set known = namespace(before=none) %}
{% for row in summary.table(name) %}
<tr>
<td>{{ name }}</td>
<td>{{ stages.get(row.label) or row.label or ("step " ~ row.step) }}</td>
<td class="n">{{ row.get("scored", row.tasks) }}{% if row.get("scored", row.tasks) != row.tasks %} of {{ row.tasks }}{% endif %}</td>
<td class="n"><b>{{ row.accuracy | percent }}</b></td>
<td class="n">{% if known.before is not none and row.accuracy is not none %}
<span class="{{ 'up' if row.accuracy > known.before }}">{{ "%+.1f" | format((row.accuracy - known.before) * 100) }}</span>{% endif %}</td>
</tr>
{% if row.label in stages and row.accuracy is not none %}{% set known.before = row.accuracy %}{% endif %}
{% endfor %}
{% endfor %}
</table>
<p class="legend" style="margin: 8px 0 4px">Gain: percentage points over the row before it.</p>
</div>
{% endif %}
{% if summary.phases %}
{% set total = summary.phases | sum(attribute=1) %}
<div class="card">
<h3>Time</h3>
<table>
<tr><th>phase</th><th class="n">time</th><th class="n">share</th></tr>
{% for name, seconds in summary.phases %}
<tr><td>{{ name }}</td><td class="n">{{ seconds | duration }}</td><td class="n">{{ (seconds / total) | percent }}</td></tr>
{% endfor %}
<tr><td><b>together</b></td><td class="n"><b>{{ total | duration }}</b></td><td></td></tr>
</table>
</div>
{% endif %}
{% if summary.steps %}
{% set outcomes = summary.counts("outcomes") %}
<div class="card">
<h3>How training rollouts ended</h3>
<table>
<tr><th>outcome</th><th class="n">rollouts</th><th class="n">share</th></tr>
{% for name, count in outcomes.most_common() %}
<tr><td>{{ name | replace("_", " ") }}</td><td class="n">{{ "{:,}".format(count) }}</td>
<td class="n">{{ (count / outcomes.total()) | percent }}</td></tr>
{% endfor %}
</table>
</div>
{% set domains = summary.domains() %}
{% if domains %}
<div class="card">
<h3>Domains</h3>
<table>
<tr><th>domain</th><th class="n">groups</th><th class="n">share</th><th class="n">of the mix</th><th class="n">reward</th>
<th class="n">staleness</th><th class="n">late</th><th class="n">cut</th><th class="n">dropped</th></tr>
{% for row in domains %}
<tr><td>{{ row.domain }}</td><td class="n">{{ "{:,}".format(row.groups) }}</td>
<td class="n">{{ row.consumed_share | percent }}</td><td class="n">{{ row.share | percent }}</td>
<td class="n">{{ row.reward_mean | number }}</td><td class="n">{{ row.staleness_mean | number }}</td>
<td class="n">{{ row.overdue }}</td><td class="n">{{ row.cut }}</td><td class="n">{{ row.refill }}</td></tr>
{% endfor %}
</table>
<p class="legend" style="margin: 8px 0 4px">Share: of the units taken. Reward, staleness: over the last ten steps. Late: ran past the head
deadline; then cut to what had finished, or dropped.</p>
</div>
{% endif %}
{% set sampled = summary.total("sampled_tokens") %}
<div class="card">
<h3>What became of the sampled tokens</h3>
<table>
<tr><th></th><th class="n">tokens</th><th class="n">share</th></tr>
<tr><td>trained</td><td class="n">{{ "{:,.0f}".format(summary.total("trained_tokens")) }}</td>
<td class="n">{{ (summary.total("trained_tokens") / sampled if sampled else none) | percent }}</td></tr>
{% for name, count in summary.counts("masked").most_common() if count %}
<tr><td>masked: {{ name | replace("_", " ") }}</td><td class="n">{{ "{:,}".format(count) }}</td>
<td class="n">{{ (count / sampled if sampled else none) | percent }}</td></tr>
{% endfor %}
</table>
</div>
{% endif %}
</div>
{% endif %}

{% if plots %}
<h2>Curves</h2>
<div class="plots">
{% for plot, data in plots %}
<figure class="card" id="{{ plot.name }}"><figcaption><b>{{ plot.title }}</b>{{ plot.caption }}</figcaption>
<img alt="{{ plot.title }}" src="data:image/png;base64,{{ data }}"></figure>
{% endfor %}
</div>
{% endif %}

{% if rollouts %}
<h2>Rollouts, call by call</h2>
<p class="legend">Grey: what the prompt added. Below it: what the model sampled, certain <span class="scale"></span> surprising;
point at a token for its log-probability. <span class="v">v3</span> marks the weight version that sampled what follows.</p>
{% for item in rollouts %}
{% set rollout = item.rollout %}
<details class="card rollout"{% if loop.first %} open{% endif %}>
<summary><b>{{ item.why }}</b>
{% if rollout.reward %}<span class="chip {{ 'good' if rollout.reward.value > 0 }}">reward {{ rollout.reward.value | number }}</span>
{% else %}<span class="chip">no reward</span>{% endif %}
<span class="chip {{ 'good' if rollout.outcome == 'finished' else 'bad' }}">{{ rollout.outcome | replace("_", " ") }}</span>
<span class="chip">{{ item.calls | length + item.left_out }} calls</span>
<span class="chip">{{ "unit %d, rollout %d" | format(rollout.unit, rollout.index) if rollout.unit >= 0 else rollout.split }}</span>
<span class="chip">task {{ rollout.task_id }}</span></summary>
<div class="inside">
{% if item.instruction %}<p class="task">{{ item.instruction }}</p>{% endif %}
{% if rollout.detail %}<p class="note">{{ rollout.detail }}</p>{% endif %}
{% for view in item.calls %}
{% set call = view.call %}
<div class="call">
<h4>Call {{ call.index }}
<small>{% if view.parent is not none %}continues call {{ view.parent }}, whose first {{ "{:,}".format(call.shared) }} tokens it
shares{% else %}new history{% endif %} · {{ call.delta | length }} new prompt tokens · {{ call.sampled | length }} sampled ·
ended by {{ call.finish.value }} · {{ "%.2f" | format(call.ended_at - call.started_at) }} s</small>
{% if call.fork %}<span class="chip bad">fork: {{ call.fork.value }}</span>{% endif %}
{% if call.error %}<span class="chip bad">{{ call.error }}</span>{% endif %}</h4>
<div class="text prompt">{{ view.prompt }}</div>
<div class="text reply">{% for span in view.spans %}{% if span.version is not none %}<span class="v">v{{ span.version }}</span>{% endif
%}<i title="{{ span.tip }}" style="background: rgba(234, 88, 12, {{ '%.2f' | format(span.shade * 0.7) }})">{{ span.text }}</i>{% endfor
%}{% if view.left_out %}<span class="chip">{{ "{:,}".format(view.left_out) }} more tokens</span>{% endif %}</div>
{% for name, arguments in view.tools %}<p class="tool">→ <b>{{ name }}</b>({{ arguments }})</p>{% endfor %}
</div>
{% endfor %}
{% if item.left_out %}<p class="note">{{ item.left_out }} more calls are in the call log.</p>{% endif %}
{% if rollout.output %}
<div class="call"><h4>What the agent printed</h4><div class="text prompt alone">{{ rollout.output[-4000:] }}</div></div>
{% endif %}
</div>
</details>
{% endfor %}
{% endif %}

<h2>Configuration</h2>
<details class="card"><summary class="plain">the resolved run file</summary><pre class="config">{{ config_text }}</pre></details>
</main>
</body>
</html>
"""
)
