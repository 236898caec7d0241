"""What is said over an answer in the recorded set: one table for each half, so that no interruption stands in both.

Read by ``make_set.py`` alone. Listeners use the same few words again and again, so the common acknowledgements stand in both
halves, spoken anew; those at the end of each list stand in one. Nothing here was chosen by how it is recognised.
"""

from __future__ import annotations

from typing import Final

INTERRUPTIONS: Final = {
    "tuning": (
        "Stop.",
        "Wait, what about the price?",
        "No, I meant the other one.",
        "Hold on.",
        "Hang on a second.",
        "What time does it open?",
        "Actually, never mind.",
        "Excuse me.",
        "Can you repeat that?",
        "That's not what I asked.",
        "Sorry, who was that?",
        "Could you speak a little slower, please?",
        "Yeah, but what about tomorrow?",
        "Okay, stop.",
        "Let me ask you something else.",
        "Why?",
        "How much is it?",
        "I already know that part, tell me about the second one.",
        "No no no.",
        "Be quiet.",
        "Turn it off.",
        "Wait.",
        "Hello?",
        "Make it shorter.",
        "I don't understand a word of this.",
        "Skip to the end.",
        "Right, and where do I send the form?",
        "Cancel my order from last Tuesday and book the early train instead.",
        "No.",
        "Hey, listen.",
        "What do you mean by that?",
        "Is it going to rain?",
        "That's enough, thank you.",
        "Which one?",
    ),
    "held-out": (
        "Stop it.",
        "Wait a minute, is that right?",
        "No, not Boston, Austin.",
        "Hold on a moment.",
        "One second.",
        "Where is the nearest station?",
        "Actually, I changed my mind.",
        "Pardon me, may I say something?",
        "Say that again.",
        "You misunderstood me.",
        "Sorry, what was the name?",
        "Please speak up, I can hardly hear you.",
        "Okay, but how long does it take?",
        "Stop talking.",
        "I have another question.",
        "Who?",
        "How far is that?",
        "Forget about the hotel, we will stay with my sister.",
        "No, wait.",
        "Shut up.",
        "Go back.",
        "What?",
        "Are you there?",
        "Too long.",
        "This doesn't make any sense to me.",
        "Next one, please.",
        "I see, so can I pay with a card?",
        "Remind me to call the dentist tomorrow morning at nine.",
        "Nope.",
        "Listen to me.",
        "When was that?",
        "Do I need a ticket for the baby?",
        "Thanks, that will do.",
        "But I told you already.",
    ),
}
"""Short and long, polite and rude, questions, corrections, and some that begin like an acknowledgement."""

BACKCHANNELS: Final = {
    "tuning": (
        "Yeah.",
        "Mm-hmm.",
        "Uh-huh.",
        "Right.",
        "Okay.",
        "I see.",
        "Sure.",
        "Wow.",
        "Oh.",
        "Got it.",
        "Really?",
        "Yes.",
        "Hmm.",
        "Exactly.",
    ),
    "held-out": (
        "Yeah.",
        "Mm-hmm.",
        "Uh-huh.",
        "Right.",
        "Okay.",
        "I see.",
        "Sure.",
        "Wow.",
        "Oh, okay.",
        "Makes sense.",
        "Yeah, yeah.",
        "Yep.",
        "Ah.",
        "Oh really?",
    ),
}
"""What a listener says to mean no more than "go on". Every voice says each."""

SPOKEN_AS: Final = {("joe", "Mm-hmm."): "um hum.", ("joe", "Hmm."): "hum."}
"""What a voice is given where its lexicon spells the word out or swallows it."""

PAUSES: Final = {
    "tuning": (
        "Wait. What about the second one?",
        "No. I said the blue one.",
        "Um. Can I ask something?",
        "Okay. But how do I get there?",
        "Sorry. I did not get that.",
        "Yeah. But that is not what I want.",
        "So. What happens next?",
        "Oh. Is that included?",
        "Stop. Go back to the start.",
    ),
    "held-out": (
        "Hold on. Which street was it?",
        "No. The other way around.",
        "Uh. I have a question.",
        "Right. And how much does it cost?",
        "Excuse me. Could you repeat the number?",
        "Yes. But my flight leaves at noon.",
        "Well. I am not so sure.",
        "Hmm. Can we try something else?",
        "Listen. I only have a minute.",
    ),
}
"""Interruptions with a pause in them, some of which begin with what would be an acknowledgement alone."""
