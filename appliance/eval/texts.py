"""The three short texts that quality is measured on, and the prompts that loops are looked for in.

Of our own making: no model can have been trained on them, and nobody's licence goes with them.
"""

import random

PROSE = """\
In the part of the town where the river bends twice before it reaches the harbour, there is a narrow
street that most visitors never find. It is called Varn Street, and nobody knows who Varn was. Some people
say that he was a sailor who came back rich and built the first house with a roof of slate. Others believe
that the name is only an old word for a place where nets were hung to dry. The archive in the town hall
has burned down three times, so the question cannot be settled, and the people who live there are rather
proud of that.

At number eleven there was for many years a shop with a green door and a window so full of clocks that the
light inside was always a little brown. The man who owned it was called Tobias Merrin. He was not old when
he came, but he seemed old even then, because he walked slowly and thought before he spoke. He had learned
his trade from an aunt, which was unusual, and he used to say that she could take a watch apart in the
dark and put it together again while she told a story.

Every clock in the shop showed a different time. Customers found this strange. They expected that a person
who repaired clocks for a living would keep his own in order, and more than one of them said so. Tobias
explained it in the same way each time. A clock that has just been repaired, he said, must be watched for
two weeks. If it gains or loses a minute, I need to know when it began. If I set it again each morning, I
would wipe out the very thing that I want to learn. So every clock here began at its own moment, and I
have written down which. He would then open a long grey book with columns of figures and show them the
line for a clock of their choice. Most people understood this, and some of them came back only to look at
the book.

The trade was never good, but it was steady. In the winter the harbour offices sent their large wall
clocks, which suffered from the cold and the salt. In the spring there were wedding presents, mostly small
clocks with painted faces that had cost too much and ran badly. In the summer the visitors brought watches
that had been dropped on the stones of the pier. Tobias charged little for cleaning, a fair amount for new
parts, and nothing at all for advice. The advice was often the most useful part. He told one captain to
hang his watch on the other side of the cabin, away from the stove, and it never had to be repaired again.

One evening in October, shortly before he closed, a girl of about twelve came in with a parcel wrapped in
a towel. It was raining hard, and she stood on the mat so that she would not drip on the floor. Her name
was Ilse, and her father worked on the ferry. In the towel there was a wooden case with a glass front,
about as long as an arm, and inside it hung a pendulum without a clock. There were no hands, no numbers
and no wheels, only a rod with a brass weight at the end, fixed to a small steel spring.

"Where is the rest of it?" Tobias asked.

"There is no rest," she said. "My grandmother says that it was made like this. It belonged to her father.
If you push it, it swings for a whole day."

Tobias pushed it with one finger. It swung without any sound. He looked at it for a long time, and then he
took his own watch out of his pocket and counted under his breath. When he had finished he counted again,
and after that he sat down on his stool.

"What do you want me to do with it?" he said.

"I want to know what it is for," said the girl.

He asked her to leave it with him until Saturday. When she had gone he locked the door, moved the lamp
closer and began to measure. The rod was not made of brass, as he had thought, but of two metals, one
inside the other, so that in warm weather one would grow a little longer and the other would pull it back.
The spring was thinner than any that he could buy. The weight had a screw below it with a hundred fine
marks, and beside the marks there were letters, so small that he needed his strongest glass to read them.
They were the names of towns. He knew about half of them. The first was the name of the capital, the last
was a port in the far north, and between them the order seemed to make no sense until he thought of a map.
Then he saw that they were arranged by how far they lay from the equator.
"""

CODE = r"""
class RingBuffer:
    '''Keeps the last `size` values that were added.'''

    def __init__(self, size):
        if size < 1:
            raise ValueError("size must be at least 1")
        self.values = [None] * size
        self.next = 0
        self.count = 0

    def add(self, value):
        self.values[self.next] = value
        self.next = (self.next + 1) % len(self.values)
        self.count = min(self.count + 1, len(self.values))

    def __iter__(self):
        start = (self.next - self.count) % len(self.values)
        for offset in range(self.count):
            yield self.values[(start + offset) % len(self.values)]


def read_stations(path):
    '''Return a dictionary from station name to a list of measured heights.'''
    stations = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, _, height = line.partition(",")
            try:
                stations.setdefault(name, []).append(float(height))
            except ValueError:
                raise ValueError(f"line {number}: {height!r} is not a number") from None
    return stations


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def shortest_path(graph, start, goal):
    '''Breadth-first search; graph maps a node to its neighbours.'''
    queue = [start]
    came_from = {start: None}
    while queue:
        node = queue.pop(0)
        if node == goal:
            path = []
            while node is not None:
                path.append(node)
                node = came_from[node]
            return path[::-1]
        for neighbour in graph.get(node, ()):
            if neighbour not in came_from:
                came_from[neighbour] = node
                queue.append(neighbour)
    return None


def test_median_of_even_number_of_values():
    assert median([4, 1, 3, 2]) == 2.5

#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int *values = malloc(argc * sizeof(int));
    if (values == NULL) {
        fprintf(stderr, "out of memory\n");
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        values[i - 1] = atoi(argv[i]);
    }
    qsort(values, argc - 1, sizeof(int), compare);
    for (int i = 0; i < argc - 1; i++) {
        printf("%d\n", values[i]);
    }
    free(values);
    return 0;
}

SELECT station.name, COUNT(*) AS nights, AVG(reading.seconds) AS mean_seconds
FROM reading
JOIN station ON station.id = reading.station_id
WHERE reading.crossed_out = 0
GROUP BY station.name
HAVING COUNT(*) >= 10
ORDER BY station.name;

function groupBy(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) {
      groups.set(key, []);
    }
    groups.get(key).push(item);
  }
  return groups;
}
"""

# Greedy answers to these are looked at for loops.
PROMPTS = (
    "The lighthouse keeper opened the door and saw",
    "def is_prime(n):\n",
    "To bake bread you need flour, water, salt and yeast. First,",
    "A shop sells 12 pens a day at 3 coins each. In 5 days it earns",
)


def arithmetic() -> str:
    """Return worked sums, the same every time."""
    draw = random.Random(20)  # noqa: S311  # a text, not a secret
    lines = []
    for _ in range(12):
        a, b, c = draw.randint(12, 980), draw.randint(12, 980), draw.randint(3, 12)
        price, count = draw.randint(2, 30), draw.randint(3, 40)
        lines += [
            f"{a} + {b} = {a + b}",
            f"{max(a, b)} - {min(a, b)} = {abs(a - b)}",
            f"{a} x {c} = {a * c}",
            f"A box holds {count} cups and each cup costs {price} coins.",
            f"So {c} boxes hold {c * count} cups.",
            f"They cost {c} x {count} x {price} = {c * count * price} coins.",
            f"Half of {2 * a} is {a}, and a third of {3 * b} is {b}.",
        ]
    return "\n".join(lines) + "\n"


def long_text(num_chars: int) -> str:
    """Return the domains' texts again and again, in changing order: much is to be found further up."""
    draw = random.Random(21)  # noqa: S311  # a text, not a secret
    parts, length = list[str](), 0
    while length < num_chars:
        texts = list(domains().values())
        draw.shuffle(texts)
        parts += texts
        length += sum(map(len, texts))
    return "\n".join(parts)


def domains() -> dict[str, str]:
    """Return the text of each domain by its name."""
    return {"prose": PROSE, "code": CODE.lstrip(), "arithmetic": arithmetic()}
