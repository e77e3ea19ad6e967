package box

import "time"

// AskAgain is the pause before the next question to an execd that does not answer yet.
func AskAgain(waited time.Duration) time.Duration { return askAgain(waited) }

// Translated is what a caller gets of an engine's error.
func Translated(err error) error { return translated(err) }
