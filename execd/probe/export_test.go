package probe

// Look is what the tests look at from outside.
var Look = look
