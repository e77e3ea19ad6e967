package enforcer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"sandbox.internal/egress/policy"
)

// ErrDamaged says that saved state exists and cannot be read.
var ErrDamaged = errors.New("the saved state is damaged")

// Store keeps the policy and the name servers in files, so that they survive a restart of the
// egress daemon. The sandbox must not be able to write to the directory.
type Store struct{ policy, nameServers string }

// NewStore returns a store in the directory, which is made when it is not there.
func NewStore(directory string) (*Store, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	return &Store{policy: filepath.Join(directory, "policy.json"), nameServers: filepath.Join(directory, "name-servers.json")}, nil
}

// NameServers returns the name servers that were saved. When there are none yet it takes those that
// find returns, and saves them before it returns them. A file that cannot be read is an error that
// is [ErrDamaged]: find must not be asked again, because what it looks at may be in the sandbox's
// hands by then.
func (s *Store) NameServers(find func() ([]netip.AddrPort, error)) ([]netip.AddrPort, error) {
	data, err := os.ReadFile(s.nameServers)
	if errors.Is(err, fs.ErrNotExist) {
		found, err := find()
		if err != nil {
			return nil, err
		}
		return found, save(s.nameServers, "name servers", found)
	}
	var saved []netip.AddrPort
	if err == nil {
		err = json.Unmarshal(data, &saved)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: read the saved name servers: %w", ErrDamaged, err)
	}
	return saved, nil
}

// Load returns the policy that was saved last, or the fallback when none was. A file that cannot be
// read is an error together with a policy that denies everything: nothing must fall back to what
// allows more.
func (s *Store) Load(fallback policy.Policy) (policy.Policy, error) {
	closed := policy.Policy{DefaultAction: policy.Deny}
	data, err := os.ReadFile(s.policy)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fallback, nil
	case err != nil:
		return closed, fmt.Errorf("read the saved policy: %w", err)
	}
	saved, err := policy.Parse(data)
	if err != nil {
		return closed, fmt.Errorf("read the saved policy %s: %w", s.policy, err)
	}
	return saved, nil
}

// Save replaces the saved policy in one step.
func (s *Store) Save(p policy.Policy) error { return save(s.policy, "policy", p) }

// save replaces a file by the JSON of a value in one step.
func save(path, what string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("save the %s: %w", what, err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("save the %s: %w", what, err)
	}
	defer os.Remove(file.Name()) // it is not there any more when all went well
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("save the %s: %w", what, err)
	}
	return nil
}
