"""A sample of what people have models write: two vocabularies are compared on it."""

SAMPLE_TEXT = '''The council met on 14 March 2023 to discuss the bridge. "It was closed for 18 months,"
the engineer said, "and the repair cost $2,450,000; nobody had planned for that." Three of the seven
members wanted to wait. The others asked how long the old one, built in 1962, would last if nothing were done.

Here is a short answer first. A cache keeps what was asked for recently, because it is likely to be asked for
again; when it is full, something has to go. Which entry that is decides how well it works:

1. **LRU** removes what was used longest ago.
2. **LFU** removes what was used least often; new entries are at a disadvantage.
3. Random removal is cheap, and surprisingly good for large caches.

def moving_average(values: list[float], width: int = 5) -> list[float]:
    """Return the mean of each window of `width` values."""
    if width < 1 or width > len(values):
        raise ValueError(f"width must be between 1 and {len(values)}, not {width}")
    total = sum(values[:width])
    result = [total / width]
    for i in range(width, len(values)):
        total += values[i] - values[i - width]
        result.append(total / width)
    return result

for (let i = 0; i < items.length; i++) {
  const item = items[i];
  if (!item.visible || item.price === null) continue;
  console.log(`${item.name}: ${item.price.toFixed(2)}`);
}

{"name": "Anna Keller", "age": 37, "address": {"street": "12 Mill Road", "city": "Leeds"}, "tags": ["new"]}

SELECT customer_id, COUNT(*) AS orders, SUM(total) FROM orders WHERE placed_on >= '2024-01-01' GROUP BY 1;

Dear Ms Okafor, thank you for your letter of 3 May. I am afraid that the part (no. 88-1042) is out of stock
until the end of the month. Would a used one do? La réunion est prévue jeudi à 15 h. Das Paket wiegt 4,5 kg.
'''.encode()
