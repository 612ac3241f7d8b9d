"""A text of our own to read: `kv_quality` measures how surprised a model is by it."""

from __future__ import annotations

TEXT = """\
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
