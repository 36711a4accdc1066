import unittest

from shop.basket import Basket
from shop.money import split, written
from shop.receipt import WIDTH, receipt


class Money(unittest.TestCase):
    def test_shares_add_up_to_the_bill(self) -> None:
        for cents, people in [(1000, 3), (1, 2), (0, 4), (999, 1)]:
            with self.subTest(cents=cents, people=people):
                self.assertEqual(sum(split(cents, people)), cents)

    def test_shares_differ_by_one_cent_at_most(self) -> None:
        shares = split(1000, 3)
        self.assertLessEqual(max(shares) - min(shares), 1)

    def test_amounts_have_two_places(self) -> None:
        self.assertEqual([written(5), written(-1234)], ["0.05", "-12.34"])


class Discount(unittest.TestCase):
    def test_fifty_is_enough_for_the_discount(self) -> None:
        basket = Basket()
        basket.put("kettle", 25_00, 2)
        self.assertEqual(basket.total, 45_00)

    def test_less_is_not(self) -> None:
        basket = Basket()
        basket.put("kettle", 49_99)
        self.assertEqual(basket.total, 49_99)


class Receipt(unittest.TestCase):
    def test_every_line_has_the_width_of_the_paper(self) -> None:
        basket = Basket()
        basket.put("tea", 3_20, 2)
        basket.put("a cast-iron kettle with a very long name", 39_00)
        widths = {len(line) for line in receipt(basket).splitlines()}
        self.assertEqual(widths, {WIDTH})

    def test_the_total_is_the_last_line(self) -> None:
        basket = Basket()
        basket.put("tea", 3_20, 2)
        self.assertEqual(receipt(basket).splitlines()[-1].split(), ["total", "6.40"])


if __name__ == "__main__":
    unittest.main()
