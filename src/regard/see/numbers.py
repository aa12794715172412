"""A number in; the few digits that fit a cell out."""


def brief(value: float) -> str:
    """Two digits after the point, and none where the number is whole: 0 is exactly 0, what is almost 0 is <.01."""
    if value == 0:
        return "0"
    if abs(value) < 0.005:
        return "<.01" if value > 0 else ">-.01"
    if value == round(value) and abs(value) < 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.3g}"
