"""Line charts as SVG, for the documents."""

import math

COLOURS = ("#c0392b", "#2471a3", "#1e8449")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 400, 60, 40, 340
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def line_chart(title, x_title, x_ticks, series, unit="", logarithmic=False):
    """The chart of {label: [(x, y)]}; x_ticks are the places that the x axis names, as text, the
    first and last of them its ends: {place: text}."""
    scale = math.log if logarithmic else float
    first, last = scale(min(x_ticks)), scale(max(x_ticks))
    top = max(y for points in series.values() for _, y in points) * 1.1

    def x(value):
        return LEFT + (scale(value) - first) / (last - first) * (WIDTH - LEFT - 30)

    def y(value):
        return BOTTOM - value / top * (BOTTOM - TOP)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="{WIDTH / 2}" y="22" text-anchor="middle" font-size="14">{title}</text>',
             f'<path d="M{LEFT},{TOP} V{BOTTOM} H{WIDTH - 20}" fill="none" stroke="black"/>',
             f'<text x="{WIDTH / 2}" y="{HEIGHT - 15}" text-anchor="middle">{x_title}</text>']
    for place, text in x_ticks.items():
        parts.append(f'<text x="{x(place)}" y="{BOTTOM + 18}" text-anchor="middle">{text}</text>')
    step = next(s for s in STEPS if top / s <= 8)
    for i in range(int(top / step) + 1):
        parts.append(f'<text x="{LEFT - 8}" y="{y(i * step) + 4:.1f}" text-anchor="end">'
                     f'{i * step:g}{unit}</text><path d="M{LEFT},{y(i * step):.1f} H{WIDTH - 20}" '
                     'stroke="#ddd"/>')
    for row, ((label, points), colour) in enumerate(zip(series.items(), COLOURS)):
        line = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" '
                     'stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 20}" y="{60 + 18 * row}" fill="{colour}">{label}</text>')
    return "\n".join(parts) + "\n</svg>\n"
