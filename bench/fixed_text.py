"""A text of our own to read: prose, code and dialogue. Reports on quality measure how surprised a
model is by it, so a change of a word here changes their figures."""

from __future__ import annotations

TEXT = '''\
The harbour clock

For as long as anyone in Sandwick could remember, the clock on the harbour office had been four
minutes slow. Visitors noticed it within a day and said so, usually at breakfast. The people of the
town noticed it only when it was right, which had happened twice: once after the great storm, when
the pendulum was knocked against the case, and once when a young man from the county came to repair
it without being asked. Both times the ferry left without half of its passengers, the baker opened
his door to an empty street, and the school bell rang over a yard in which nobody stood. The young
man was thanked, given a smoked eel, and asked to put the four minutes back.

The reason was simple. When the railway came, the town lay at the end of a long branch line, and the
last train from the junction was always late. It was not very late, but it was late in the same way
every evening, because the driver had to wait for the mail. The harbour master of that time, a
patient man called Oldroyd, wrote three letters to the company. Then he climbed the stairs with a
screwdriver and made the train punctual. The mail has long been carried by road, and the branch line
is a path for bicycles, yet the clock has kept its habit. A town can grow around a mistake as a tree
grows around a railing, and after a while it is hard to say which of them holds up the other.

Marta Oldroyd, the harbour master's great-granddaughter, now winds the clock on the first Monday of
each month. She is an engineer and does not like to be asked about it.

"You could set it right," said her nephew Jonas, who was eleven and had come up the stairs behind
her. "It would take you one minute."

"It would take me four," said Marta. "Hold the lamp a little higher, please."

"But it's wrong! Everybody has a telephone. Everybody can see that it's wrong."

"Everybody can see what it says, and everybody knows what it means. When it strikes nine, what does
your mother do?"

Jonas thought about it. "She puts her coat on."

"And when she comes down to the quay?"

"Then it's nine. Really nine, I mean. And the boat goes." He was silent for a moment. "So it isn't
slow. It's a clock that tells you when to put your coat on."

"That," said Marta, "is the best explanation I have heard so far. Now count the turns for me. There
must be thirty-two of them, no more and no less."

In the evening Jonas sat at the kitchen table and wrote a program. He had learned a little Python at
school, mostly by drawing spirals, and he wanted to know what would become of the town if somebody
repaired the clock after all. This is what he wrote, with the corrections that his aunt made in
pencil on the printed page:

import random

SLOW = 4  # minutes


class Passenger:
    """Somebody who leaves the house when the clock strikes."""

    def __init__(self, name, walk):
        self.name = name
        self.walk = walk  # minutes from the door to the quay

    def arrives(self, strike):
        return strike + self.walk + random.randint(-1, 1)


def left_behind(passengers, departure, slow=SLOW):
    """The names of those who reach the quay after the boat has gone."""
    strike = departure - 5 + slow
    late = []
    for passenger in passengers:
        if passenger.arrives(strike) > departure:
            late.append(passenger.name)
    return sorted(late)


if __name__ == "__main__":
    people = [Passenger("Anna", 3), Passenger("Bo", 6), Passenger("Cleo", 1)]
    for slow in range(0, 8, 2):
        print(slow, left_behind(people, departure=540, slow=slow))

"There is a fault in it," said Marta. "If the clock is slow, it strikes late. Then your passengers
leave late, and more of them miss the boat. But in the town it is the other way round."

"Because the captain goes by the clock as well," said Jonas slowly. "The boat is part of the town."

"So what would you have to change?"

He took the pencil. "The departure. It has to be plus slow, too. And then..." He crossed out one
line and wrote another. "Then slow cancels out. It makes no difference at all how slow the clock is,
as long as everybody uses the same one!"

"As long as everybody does," said Marta. "That is all that a clock is for. The hard part is never
the clock. It is the day on which one half of the people look at one clock, and the other half at
another."

What follows is taken from the notice that has hung beside the door of the harbour office ever
since. It is framed, and signed by both of them.

1. The clock of this office is four minutes slow. This is known.
2. The ferry leaves by this clock. So do the post van, the choir, and the swimming club.
3. Persons who arrive by their own watches are asked to wait. There is a bench, and in winter there
   is tea.
4. Repairs are carried out by the family Oldroyd only. Well-meant help costs one smoked eel, payable
   to the harbour master.

Last spring a professor from the capital came to measure the tides. She read the notice twice,
laughed, and set her instruments by the sun. For a week she was always early, had the bench to
herself, and drank a good deal of tea. On the eighth day somebody saw her standing below the clock
with her watch in her hand, turning the little wheel back: one minute, two, three, four. Nobody said
a word about it, but when she reached the quay that evening, the captain touched his cap, and the
boat left exactly on time.
'''

PROSE = """\
The harbour town of Ellmouth lies where two rivers meet the sea. For three hundred years its people
lived from herring, and the older houses still have the wide upper doors through which the nets were
hauled up to dry. When the herring went away, the town did not know what to do with itself. Some
families moved inland to the mills. Others bought bigger boats and sailed further out, and a few of
them came home rich. Most stayed, mended what they had, and waited.

The first bridge over the northern river was built of oak. It stood for eleven winters, until a
spring flood carried it off in a single night together with the toll keeper's hut. Nobody was hurt,
because the toll keeper had gone to a wedding. The second bridge was built of stone, and the council
argued about its height for so long that the masons finished the piers before anybody had decided
how tall the ships were that should pass beneath. In the end a captain settled the matter. He
measured his own mast, added the length of his arm, and said that whoever owned a taller ship could
pay for a taller bridge.

Today the bridge carries a narrow road and, on its seaward side, a path for walkers. From the middle
you can see the lighthouse, the long mole with its iron rings, and on clear mornings the islands,
which are not really islands but hills at the end of a low spit of sand. Children are told that the
hills are sleeping whales. They believe it until they are about six, and tell it to their own
children later on.

There is a small museum in the old customs house. It holds a great many anchors, a collection of
knots, and the logbook of a ship that sailed to the south and was never heard of again. How the
logbook came back without the ship is the question that every visitor asks. The keeper of the museum
has an answer for each day of the week. On Mondays a whaler found it in a barrel. On Tuesdays it was
never on board at all, because the mate had left it in a tavern. On Sundays, when the museum is free
and crowded, she says that she does not know, and that this is the true answer.

If you come by train, leave the station by the small door beside the kiosk and follow the canal. You
will pass a row of lime trees, a school, and a bakery which sells a flat bread with caraway seeds.
Buy one while it is warm. Behind the bakery the street begins to fall towards the water, the air
smells of salt and tar, and before long you will hear the bell of the ferry. It leaves every half
hour in summer and every hour in winter. In a storm it does not leave at all, and then the whole
town comes down to the quay to look at the waves, as if they had been ordered for the occasion.
"""
