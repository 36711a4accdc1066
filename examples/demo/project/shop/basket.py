"""What a customer buys, and what it costs."""

from dataclasses import dataclass, field

DISCOUNT_FROM = 50_00
DISCOUNT_PERCENT = 10


@dataclass(frozen=True)
class Line:
    """So many of one article."""

    article: str
    price: int
    count: int = 1

    @property
    def total(self) -> int:
        return self.price * self.count


@dataclass
class Basket:
    """Lines in the order in which they were put in; the same article is one line."""

    lines: list[Line] = field(default_factory=list)

    def put(self, article: str, price: int, count: int = 1) -> None:
        for number, line in enumerate(self.lines):
            if (line.article, line.price) == (article, price):
                self.lines[number] = Line(article, price, line.count + count)
                return
        self.lines.append(Line(article, price, count))

    @property
    def subtotal(self) -> int:
        return sum(line.total for line in self.lines)

    @property
    def discount(self) -> int:
        """Ten percent from 50.00 on; half a cent is the customer's."""
        if self.subtotal > DISCOUNT_FROM:
            return -(-self.subtotal * DISCOUNT_PERCENT // 100)
        return 0

    @property
    def total(self) -> int:
        return self.subtotal - self.discount
