package lifecycle

// State is where a sandbox stands. Clients must tolerate other values.
type State string

// The states of the lifecycle document, and Resuming, which we show between Paused and Running.
const (
	StatePending    State = "Pending"    // being provisioned
	StateRunning    State = "Running"    // proven usable
	StatePausing    State = "Pausing"    // being frozen
	StatePaused     State = "Paused"     // frozen, memory retained; after a reboot of the host, files alone ([Record].Stopped)
	StateResuming   State = "Resuming"   // being thawed, or started again; an extension of the document
	StateStopping   State = "Stopping"   // being terminated
	StateTerminated State = "Terminated" // ended; nothing of it is left but the record
	StateFailed     State = "Failed"     // ended by a critical error; nothing of it is left but the record
)

// States lists every state, in the order of a life.
func States() []State {
	return []State{StatePending, StateRunning, StatePausing, StatePaused, StateResuming, StateStopping, StateTerminated, StateFailed}
}

// Final reports whether no transition leaves the state.
func (s State) Final() bool { return s == StateTerminated || s == StateFailed }

// Transient reports whether the service itself is at work to leave the state.
func (s State) Transient() bool {
	return s == StatePending || s == StatePausing || s == StateResuming || s == StateStopping
}

// HasNetwork reports whether what owns the network of a sandbox in the state runs, such as its
// egress sidecar.
func (s State) HasNetwork() bool { return s == StateRunning || s == StatePaused }

// CheckSidecar returns an Error of KindConflict unless the egress sidecar of a sandbox in the state
// can be asked.
func (s State) CheckSidecar() error {
	if s.HasNetwork() {
		return nil
	}
	conflict := s.Conflict("ask the egress sidecar", StateRunning, StatePaused)
	if s.Transient() && s != StateStopping {
		conflict.RetryAfter = 1
	}
	return conflict
}

// CheckRenewable returns an Error of KindConflict unless the expiry of a sandbox in the state can
// be moved.
func (s State) CheckRenewable() error {
	if s.Final() || s == StateStopping {
		return s.Conflict("renew", StatePending, StateRunning, StatePausing, StatePaused, StateResuming)
	}
	return nil
}

// Trigger is what moves a sandbox from one state to the next.
type Trigger string

// The triggers of the transitions table.
const (
	TriggerProvisioned Trigger = "provisioned" // provisioning completed, execd answers
	TriggerPause       Trigger = "pause"       // POST pause
	TriggerPaused      Trigger = "paused"      // the engine froze it
	TriggerResume      Trigger = "resume"      // POST resume
	TriggerResumed     Trigger = "resumed"     // the engine thawed it, or started it again
	TriggerStopped     Trigger = "stopped"     // the processes are gone and the files are kept
	TriggerRollback    Trigger = "rollback"    // POST rollback
	TriggerDelete      Trigger = "delete"      // DELETE
	TriggerExpire      Trigger = "expire"      // the time of the sandbox is up
	TriggerExit        Trigger = "exit"        // the entrypoint ended with exit code 0
	TriggerTerminated  Trigger = "terminated"  // everything of it is removed
	TriggerFail        Trigger = "fail"        // a critical error
)

// Transition is one row of the transitions table.
type Transition struct {
	From    State
	Trigger Trigger
	To      State
}

// Transitions returns the table of the lifecycle document, section "States and transitions", as
// data. Every other transition is refused.
//
// The document's row Paused → Running is two rows here, through Resuming. Rows that the document
// leaves open: DELETE and expiry also end a sandbox that is still Pending, Pausing or Resuming (or
// it would leak until the next request), an entrypoint that ends with exit code 0 ends its sandbox,
// a sandbox whose files outlive its processes is Paused, and one that is given the files of a
// snapshot is Resuming.
func Transitions() []Transition {
	table := []Transition{
		{StatePending, TriggerProvisioned, StateRunning},
		{StateRunning, TriggerPause, StatePausing},
		{StatePausing, TriggerPaused, StatePaused},
		{StatePaused, TriggerResume, StateResuming},
		{StateResuming, TriggerResumed, StateRunning},
		{StateRunning, TriggerStopped, StatePaused},
		{StatePausing, TriggerStopped, StatePaused},
		{StateResuming, TriggerStopped, StatePaused},
		{StateRunning, TriggerRollback, StateResuming},
		{StatePaused, TriggerRollback, StateResuming},
		{StateStopping, TriggerTerminated, StateTerminated},
		{StateStopping, TriggerFail, StateFailed},
	}
	for _, from := range []State{StatePending, StateRunning, StatePausing, StatePaused, StateResuming} {
		table = append(table,
			Transition{from, TriggerDelete, StateStopping},
			Transition{from, TriggerExpire, StateStopping},
			Transition{from, TriggerExit, StateStopping},
			Transition{from, TriggerFail, StateFailed})
	}
	return table
}

var transitions = func() map[State]map[Trigger]State {
	index := make(map[State]map[Trigger]State)
	for _, row := range Transitions() {
		if index[row.From] == nil {
			index[row.From] = make(map[Trigger]State)
		}
		index[row.From][row.Trigger] = row.To
	}
	return index
}()

// Next returns the state that the trigger leads to, and whether the table has such a row.
func Next(from State, trigger Trigger) (State, bool) {
	to, ok := transitions[from][trigger]
	return to, ok
}

// Reason is the short machine-oriented cause of a state.
type Reason string

// The reasons a status carries, from the lifecycle document's codes and our own.
const (
	ReasonProvisioning      Reason = "PROVISIONING"            // accepted, work has not reached the engine yet
	ReasonImagePulling      Reason = "IMAGE_PULLING"           // the image is on its way; message shows progress
	ReasonContainerStarting Reason = "CONTAINER_STARTING"      // wait for Running
	ReasonContainerRunning  Reason = "CONTAINER_RUNNING"       // usable
	ReasonUserPause         Reason = "USER_PAUSE"              // a client asked
	ReasonUserResume        Reason = "USER_RESUME"             // a client asked
	ReasonIdle              Reason = "IDLE"                    // no request or program kept the sandbox awake
	ReasonHibernated        Reason = "HIBERNATED"              // asleep, and the processes are on the disk
	ReasonHibernatedFiles   Reason = "HIBERNATED_FILES"        // asleep, the processes have ended and the files are kept
	ReasonRestoreFailed     Reason = "RESTORE_FAILED"          // started on the files, because the processes on the disk cannot be restored; message has the cause
	ReasonTimeout           Reason = "TIMEOUT"                 // the time of a sandbox was up that sleeps then
	ReasonWoken             Reason = "WOKEN"                   // a request came, or the time that the sandbox had asked for
	ReasonExternalPause     Reason = "EXTERNAL_PAUSE"          // another process froze the container
	ReasonExternalResume    Reason = "EXTERNAL_RESUME"         // another process thawed the container
	ReasonHostRebooted      Reason = "HOST_REBOOTED"           // the processes are gone, the files are kept; resume starts it again
	ReasonResumeFailed      Reason = "RESUME_FAILED"           // it could not be started again, and is as it was; message has the cause
	ReasonFilesLost         Reason = "FILES_LOST"              // after a reboot of the host its file system cannot be mounted
	ReasonRollback          Reason = "ROLLBACK"                // a client asked for the files of a snapshot
	ReasonRollbackFailed    Reason = "ROLLBACK_FAILED"         // the engine refused the files of a snapshot; message has the cause
	ReasonUserDelete        Reason = "USER_DELETE"             // a client asked
	ReasonExpired           Reason = "EXPIRED"                 // the time of the sandbox is up
	ReasonEntrypointExited  Reason = "ENTRYPOINT_EXITED"       // message has the exit code and the last lines of its log
	ReasonOOMKilled         Reason = "OOM_KILLED"              // it used more memory than its limit
	ReasonImagePullError    Reason = "IMAGE_PULL_ERROR"        // message has the registry's own words
	ReasonResourceLimit     Reason = "RESOURCE_LIMIT_EXCEEDED" // the engine does not have what was asked for
	ReasonNetworkError      Reason = "NETWORK_ERROR"           // network or port could not be set up
	ReasonProvisionTimeout  Reason = "PROVISION_TIMEOUT"       // execd did not answer in time
	ReasonDaemonReplaced    Reason = "EXECD_REPLACED"          // something else than its execd answers on execd's port
	ReasonContainerError    Reason = "CONTAINER_ERROR"         // the engine refused or could not start the container
	ReasonEngineUnavailable Reason = "ENGINE_UNAVAILABLE"      // the engine does not answer
	ReasonRemovedExternally Reason = "REMOVED_EXTERNALLY"      // another process removed the container
)

// The reasons of a snapshot that has failed; [ReasonEngineUnavailable] is another one.
const (
	ReasonSnapshotFailed   Reason = "SNAPSHOT_FAILED"    // the engine could not make it; message has the cause
	ReasonSnapshotTooLarge Reason = "SNAPSHOT_TOO_LARGE" // the sandbox has written more than its owner may keep
	ReasonNoRoom           Reason = "NO_ROOM"            // the disk of the engine's host is full
	ReasonSandboxBusy      Reason = "SANDBOX_BUSY"       // the sandbox's processes could not be stopped from running in time
	ReasonSandboxEnded     Reason = "SANDBOX_ENDED"      // the sandbox ended before the snapshot was made
)

// HostRebooted is the message of ReasonHostRebooted.
const HostRebooted = "the host was started again: the processes of the sandbox are gone, its files are kept; resume starts its entrypoint again"

// RemovedExternally is the message of ReasonRemovedExternally.
const RemovedExternally = "the container was removed by another process"
