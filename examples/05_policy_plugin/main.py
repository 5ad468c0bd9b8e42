"""A program that pays bills with a LangChain tool. It contains nothing about policies.

python main.py
"""

from __future__ import annotations

from langchain_core.tools import tool

PAID: list[tuple[str, float]] = []


@tool
def pay(to: str, amount: float) -> str:
    """Pays an amount in euros."""
    PAID.append((to, amount))
    return f"paid {amount:g} to {to}"


def main() -> None:
    for to, amount in (("Ada", 60), ("Blaise", 5000), ("Carl", 80), ("Emmy", 40)):
        print(pay.invoke({"to": to, "amount": amount}))
    print(f"paid in all: {sum(amount for _, amount in PAID):g}")


if __name__ == "__main__":
    main()
