"""Topics for templates of questions: plain words, written by hand."""


def listed(text: str) -> list[str]:
    """Return the words between bars."""
    return [" ".join(part.split()) for part in text.split("|")]


TOPICS = listed("""
    photosynthesis | the water cycle | black holes | plate tectonics | vaccines | the immune system | DNA |
    evolution | climate change | renewable energy | solar panels | wind turbines | electric cars | the
    periodic table | chemical bonds | acids and bases | gravity | quantum mechanics | relativity | the speed
    of light | sound waves | magnetism | electricity | the human heart | the brain | memory | sleep |
    nutrition | vitamins | exercise | stress | meditation | yoga | bread baking | coffee | tea | chocolate |
    cheese | gardening | composting | bees | whales | penguins | elephants | dinosaurs | rainforests | coral
    reefs | deserts | volcanoes | earthquakes | hurricanes | rivers | the Moon | Mars | Jupiter | the Sun |
    comets | the Roman Empire | ancient Egypt | ancient Greece | the Renaissance | the Industrial Revolution |
    the French Revolution | World War I | World War II | the Cold War | the Silk Road | the printing press |
    the Magna Carta | democracy | the separation of powers | human rights | inflation | supply and demand |
    taxes | interest rates | the stock market | insurance | budgeting | small businesses | marketing |
    teamwork | leadership | job interviews | public speaking | time management | email etiquette | remote work
    | artificial intelligence | machine learning | neural networks | computer viruses | passwords | encryption
    | the internet | search engines | social media | smartphones | databases | operating systems | compilers |
    version control | recursion | sorting algorithms | hash tables | linked lists | binary search |
    object-oriented programming | unit tests | web browsers | robots | 3D printing | bridges | skyscrapers |
    trains | airplanes | bicycles | ships | maps | compasses | clocks | calendars | money | languages |
    writing systems | poetry | novels | Shakespeare | fairy tales | mythology | painting | photography |
    sculpture | architecture | jazz | the piano | the guitar | opera | ballet | theater | cinema | chess |
    football | basketball | tennis | swimming | running a marathon | hiking | camping | travel | Paris | Tokyo
    | New York | Rome | Cairo | Sydney | the Amazon River | Mount Everest | the Great Wall of China |
    Antarctica | friendship | honesty | courage | happiness | fashion | cooking pasta | healthy breakfasts |
    learning a language | reading books | raising a dog | caring for a cat | moving to a new city
""")

FORMS = listed("""
    What is {}? | Explain {} in simple terms. | Tell me about {}. | Why is {} important? | Give me five facts
    about {}. | Write a short paragraph about {}. | What should a beginner know about {}? | Summarize what is
    known about {} in three sentences. | Write a poem about {}. | Write a short story about {}. | What are the
    advantages and disadvantages of {}? | How has {} changed over time? | Describe {} to a ten-year-old child.
    | Write an engaging blog post about {}. | What are common misunderstandings about {}? | List ten keywords
    related to {} and explain each. | Compose a formal email that invites people to a talk about {}. | Imagine
    you are an expert on {}. What would you say in a short interview? | Pretend to be a pirate and talk about
    {}. | Act as a teacher and explain {} step by step. | Create a quiz with four questions about {}, with
    answers. | What questions would you ask an expert on {}? | Compare {} with {other}. | How are {} and
    {other} related? | Write an outline of an essay on {}. | What does the future of {} look like? | Give an
    example that shows how {} matters in everyday life. | Write a dialogue between two friends about {}. | Who
    contributed most to our understanding of {}, and how? | What happened first in the history of {}? | Argue
    for and against the claim that {} is overrated. | Write a product description connected with {}. | Draft a
    speech about {}. | Is {} good or bad? Explain.
""")

FACTS = listed("""
    Who wrote {work}? | What is the capital of {land}? | Where is {land} located? | When was {work} published?
    | What language do people speak in {land}? | What is {work} about? | Name three cities in {land}. | What
    is the population of {land}? | Who is the main character of {work}? | What food is {land} known for? |
    Which countries border {land}? | What is the currency of {land}? | Is {land} an island?
""")

WORKS = listed("""
    Hamlet | Pride and Prejudice | Moby Dick | War and Peace | The Odyssey | Don Quixote | Frankenstein |
    Dracula | Alice in Wonderland | The Time Machine | Robinson Crusoe | Treasure Island | The Iliad | Great
    Expectations | Jane Eyre | Les Miserables | Crime and Punishment | Faust | The Jungle Book
""")

LANDS = listed("""
    France | Germany | Italy | Spain | Portugal | Norway | Sweden | Finland | Poland | Greece | Turkey | Egypt
    | Kenya | Nigeria | South Africa | India | China | Japan | Vietnam | Thailand | Indonesia | Australia |
    New Zealand | Canada | Mexico | Brazil | Argentina | Chile | Peru | Iceland | Ireland
""")

CODE = listed("""
    reverses a string | checks whether a word is a palindrome | computes the factorial of a number | returns
    the n-th Fibonacci number | finds the largest number in a list | sorts a list of tuples by the second item
    | counts the words in a text file | merges two sorted lists | removes duplicates from a list | finds all
    prime numbers below n | computes the greatest common divisor of two numbers | converts Celsius to
    Fahrenheit | reads a CSV file and prints its columns | implements a stack | implements a queue with two
    stacks | searches a sorted array | computes the average of a list | transposes a matrix | multiplies two
    matrices | validates an email address | counts the vowels in a string | flattens a nested list | finds the
    longest word in a sentence | generates a random password | traverses a binary tree in order | finds the
    shortest path in a grid | checks whether brackets are balanced | computes the edit distance of two words |
    rotates a list by k places | prints a multiplication table | downloads a web page | parses a date |
    converts a number to Roman numerals | counts how often each letter occurs | finds two numbers in a list
    that add up to a target | implements a simple calculator | plays tic-tac-toe
""")

CODE_FORMS = listed("""
    Write a Python function that {}. | Write a program in {lang} that {}. | Show me {lang} code that {}. |
    Implement a function that {} and explain how it works. | How do I write a function that {} in {lang}?
""")

CODE_LANGUAGES = listed("""
    Python | JavaScript | C++ | Java | Go | Rust | C
""")

GERMAN_WHO = listed("""
    Der Minister | Die Regierung | Ein Sprecher | Die Polizei | Der Trainer | Die Stadt | Das Unternehmen |
    Die Firma | Der Bürgermeister | Eine Studie | Der Präsident | Die Lehrerin | Der Verein | Die Forscher
""")

GERMAN_DID = listed("""
    sagte am Montag | erklärte gestern | kündigte an | bestätigte im Interview | teilte mit | betonte
""")

GERMAN_WHAT = listed("""
    dass die Preise in diesem Jahr steigen werden | dass das neue Gesetz im Herbst in Kraft tritt | dass
    niemand verletzt wurde | dass die Brücke wieder geöffnet ist | dass mehr Geld für Schulen nötig ist | dass
    der Zug wegen des Schnees Verspätung hat | dass die Mannschaft am Samstag gewonnen hat | dass viele
    Menschen eine neue Wohnung suchen | dass die Ergebnisse überraschend sind | dass die Kosten höher als
    erwartet sind | dass der Bau im nächsten Frühjahr beginnt | dass der Flughafen drei Tage geschlossen
    bleibt | dass sich das Klima schneller ändert
""")

NAMES = listed("""
    Anna | Ben | Carla | David | Emma | Felix | Grace | Henry | Ines | Jack | Kate | Liam | Maria | Noah |
    Olivia | Paul | Rosa | Sam | Tina | Victor
""")

THINGS = listed("""
    apples | books | marbles | stamps | cookies | pencils | shirts | tickets | flowers | toy cars | eggs |
    oranges | cards | candles | chairs | bottles
""")

SUMS = listed("""
    {a} has {m} {things}. {b} has {n} more than {a}. How many {things} do they have together? | {a} buys {n}
    {things} for ${k} each and pays with ${m}. How much change does {a} get? | {a} reads {k} pages a day. How
    many days does a book of {m} pages take? | A train travels at {m} miles per hour for {k} hours. How far
    does it go? | {a} earns ${n} an hour and works {k} hours a day for {j} days. How much money does {a} earn?
    | There are {m} {things} in a box. {a} takes {n} and {b} takes half of the rest. How many are left? | {a}
    shares {m} {things} equally among {k} friends. How many does each friend get, and how many remain? | A
    shop sells {things} at ${n} each and gives a discount of {j}0%. What do {k} of them cost? | {a} is {k}
    years older than {b}. In {j} years {a} will be {m}. How old is {b} now? | {a} needs {k} eggs for one cake.
    How many {j}-egg boxes does {a} buy for {n} cakes? | The sides of a rectangle are {k} cm and {n} cm. What
    are its area and its perimeter? | {a} saves ${k} every week. {b} saves twice as much. How much have they
    saved together after {n} weeks? | If {k}x + {n} = {m}, what is x? | What is {m} times {k}? | What is {j}0%
    of {m}?
""")
