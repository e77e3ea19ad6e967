package box

import "time"

// AskAgain is the pause before the next question to an execd that does not answer yet.
func AskAgain(waited time.Duration) time.Duration { return askAgain(waited) }
