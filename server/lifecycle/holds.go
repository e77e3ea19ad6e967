package lifecycle

import (
	"encoding/json"
	"errors"
	"time"
)

// MaxHoldsBytes is how long a response of execd to GET /holds may be, in bytes.
const MaxHoldsBytes = 512 << 10

// maxHolds and maxHoldText bound what is taken of that: how many holds, and the bytes of a text.
const maxHolds, maxHoldText = 1000, 256

// Holds is what keeps a sandbox awake.
type Holds struct {
	Holds []Hold
	// Idle is for how long nothing has kept it awake; 0 while anything does.
	Idle time.Duration
	// WakeAt is when it is to be woken if it falls asleep; zero when it has no such time.
	WakeAt time.Time
}

// Hold is one thing that keeps a sandbox awake.
type Hold struct {
	Kind, ID string
	Since    time.Time
}

// ParseHolds reads the response of a sandbox's daemon to GET /holds, which may be anything. At most
// 1000 holds are taken, and 256 bytes of each text. The error is not an *[Error].
func ParseHolds(response []byte) (Holds, error) {
	var reported struct {
		Holds            []Hold
		IdleMilliseconds int64
		WakeAt           time.Time
	}
	if err := json.Unmarshal(response, &reported); err != nil {
		return Holds{}, errors.New("execd answers GET /holds with something else than its holds")
	}
	holds := Holds{
		Idle:   time.Duration(min(max(0, reported.IdleMilliseconds), MaxIdle.Milliseconds())) * time.Millisecond,
		WakeAt: reported.WakeAt.UTC(),
	}
	for _, hold := range reported.Holds[:min(len(reported.Holds), maxHolds)] {
		holds.Holds = append(holds.Holds, Hold{Kind: CutHoldText(hold.Kind), ID: CutHoldText(hold.ID), Since: hold.Since.UTC()})
	}
	return holds, nil
}

// CutHoldText returns a text of the daemon without what is beyond 256 bytes.
func CutHoldText(text string) string { return text[:min(len(text), maxHoldText)] }
