"""A till: amounts in whole cents, a basket with a discount, a printed receipt."""
