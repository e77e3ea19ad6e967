package reach

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// minKeyLength is how long a signing key is at least, in bytes.
const minKeyLength = 32

// Errors of [Keys.Verify]. Test for them with errors.Is.
var (
	// ErrSignature: the signature was not made with one of the keys for this sandbox, with this
	// token, and this port.
	ErrSignature = errors.New("is not valid for this sandbox and this port")
	// ErrExpired: the signature was right and its time is over.
	ErrExpired = errors.New("has expired")
)

// Keys sign endpoints. The first one signs; a signature of any is accepted, so that keys can be
// replaced while signatures of the earlier one are in use. The zero value accepts nothing.
type Keys struct{ keys [][]byte }

// ParseKeys reads keys, one a line. Empty lines and lines that begin with # are skipped.
func ParseKeys(text []byte) (Keys, error) {
	var k Keys
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if len(line) < minKeyLength {
			return Keys{}, fmt.Errorf("line %d: a signing key has at least %d characters", number, minKeyLength)
		}
		k.keys = append(k.keys, bytes.Clone(line))
	}
	if len(k.keys) == 0 {
		return Keys{}, errors.New("there is no signing key")
	}
	return k, nil
}

// LoadKeys reads the keys in a file.
func LoadKeys(path string) (Keys, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Keys{}, err
	}
	keys, err := ParseKeys(text)
	if err != nil {
		return Keys{}, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

// LoadOrMakeKeys reads the keys in a file, and puts a random one there if there is no such file.
// Only one process at a time may do that.
func LoadOrMakeKeys(path string) (Keys, error) {
	keys, err := LoadKeys(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return keys, err
	}
	key := make([]byte, sha256.Size)
	rand.Read(key) // crypto/rand.Read never returns an error
	line := append(hex.AppendEncode(nil, key), '\n')
	// Under another name first: a crash must not leave half a key.
	draft := path + ".new"
	err = writeDurably(draft, line)
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		return Keys{}, errors.Join(err, os.Remove(draft))
	}
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return Keys{}, err
	}
	if err := errors.Join(directory.Sync(), directory.Close()); err != nil {
		return Keys{}, err
	}
	return ParseKeys(line)
}

// writeDurably writes a file that only its owner can read. When it returns, the content would
// survive a loss of power.
func writeDurably(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Sync(), file.Close())
}

// Present reports whether there is a key.
func (k Keys) Present() bool { return len(k.keys) > 0 }

// Sign returns the signature that lets requests for a port of a sandbox in until expires, which is
// cut to whole seconds. The token is the sandbox's: on a cluster an id comes back with its
// Idempotency-Key, and the signatures of the sandbox that had it before must not.
func (k Keys) Sign(id, token string, port int, expires time.Time) string {
	until := strconv.FormatInt(expires.Unix(), 10)
	return until + "." + base64.RawURLEncoding.EncodeToString(mac(k.keys[0], id, token, port, until))
}

// Verify returns until when the signature lets requests for a port of a sandbox in: none without a
// token. It returns [ErrSignature] and [ErrExpired]. The time that it takes reveals nothing about
// the keys.
func (k Keys) Verify(signature, id, token string, port int, now time.Time) (time.Time, error) {
	until, encoded, _ := strings.Cut(signature, ".")
	sent, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || len(sent) != sha256.Size || token == "" {
		return time.Time{}, ErrSignature
	}
	right := false
	for _, key := range k.keys {
		if hmac.Equal(mac(key, id, token, port, until), sent) {
			right = true
		}
	}
	seconds, err := strconv.ParseInt(until, 10, 64)
	if !right || err != nil {
		return time.Time{}, ErrSignature
	}
	expires := time.Unix(seconds, 0).UTC()
	if !now.Before(expires) {
		return time.Time{}, ErrExpired
	}
	return expires, nil
}

// mac authenticates what a signature says. No part but the last can hold the character between the
// parts, so no two say the same.
func mac(key []byte, id, token string, port int, until string) []byte {
	sum := hmac.New(sha256.New, key)
	fmt.Fprintf(sum, "sandbox endpoint 2\n%s\n%d\n%s\n%s", id, port, until, token)
	return sum.Sum(nil)
}

// Derive returns a key for another purpose, from the one that signs; nil without such a key.
func (k Keys) Derive(purpose string) []byte {
	if len(k.keys) == 0 {
		return nil
	}
	mac := hmac.New(sha256.New, k.keys[0])
	fmt.Fprintf(mac, "derived key: %s", purpose)
	return mac.Sum(nil)
}
