// What any DRA driver must do, and nothing else: the reference that `make bench` measures the node daemon against.
//
// It stands on the helper that Kubernetes gives to drivers, which serves the kubelet and reads each claim once. Added is what no
// driver can do without: a record of each claim that survives a power cut, the CDI spec that the answer names, and both gone
// again. No GPU, no limit, no pod is looked at.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

type driver struct {
	name, records, specs string
	locks                sync.Map // claim UID to *sync.Mutex
}

// record is what would be needed to make the CDI spec again.
type record struct {
	Namespace, Name string
	UID             types.UID
	Results         []resourceapi.DeviceRequestAllocationResult
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	return atOnce(claims, func(claim *resourceapi.ResourceClaim) (types.UID, kubeletplugin.PrepareResult) {
		defer d.hold(claim.UID)()
		devices, err := d.prepare(claim)
		return claim.UID, kubeletplugin.PrepareResult{Err: err, Devices: devices}
	}), nil
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	return atOnce(claims, func(claim kubeletplugin.NamespacedObject) (types.UID, error) {
		defer d.hold(claim.UID)()
		// The record last: what it tells of is there for as long as it is.
		return claim.UID, errors.Join(os.RemoveAll(d.spec(claim.UID)), os.RemoveAll(d.record(claim.UID)))
	}), nil
}

func (d *driver) HandleError(_ context.Context, err error, msg string) {
	fmt.Fprintln(os.Stderr, msg, err)
}

func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (d *driver) record(uid types.UID) string { return filepath.Join(d.records, string(uid)+".json") }

func (d *driver) spec(uid types.UID) string {
	return filepath.Join(d.specs, "k8s."+d.name+"-claim_"+string(uid)+".json")
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	kind := "k8s." + d.name + "/claim"
	kept := record{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	spec := cdi.Spec{Version: "0.3.0", Kind: kind}
	var devices []kubeletplugin.Device
	for index, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.name {
			continue
		}
		name := fmt.Sprintf("claim-%s.%d", claim.UID, index)
		kept.Results = append(kept.Results, result)
		// About as many bytes as ours.
		edits := cdi.ContainerEdits{
			DeviceNodes: []*cdi.DeviceNode{{Path: "/dev/" + result.Device}},
			Mounts:      []*cdi.Mount{{HostPath: "/usr/local/library.so", ContainerPath: "/usr/local/library.so", Options: []string{"ro", "bind"}}},
		}
		for capacity, amount := range result.ConsumedCapacity {
			edits.Env = append(edits.Env, fmt.Sprintf("LIMIT_%d_%s=%s", index, capacity, amount.String()))
		}
		spec.Devices = append(spec.Devices, cdi.Device{Name: name, ContainerEdits: edits})
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device,
			CDIDeviceIDs: []string{kind + "=" + name}, ShareID: result.ShareID,
		})
	}
	if err := write(d.record(claim.UID), kept, 0o600, true); err != nil {
		return nil, err
	}
	return devices, write(d.spec(claim.UID), spec, 0o644, false)
}

// write makes a file appear whole; durable: it is on the disk, its name too, before this returns.
func write(path string, content any, mode fs.FileMode, durable bool) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	temporary := path + ".tmp"
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if durable && err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil || !durable {
		return err
	}
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// atOnce does all claims of a call at the same time.
func atOnce[Claim, Answer any](claims []Claim, work func(Claim) (types.UID, Answer)) map[types.UID]Answer {
	var group sync.WaitGroup
	var mutex sync.Mutex
	answers := make(map[types.UID]Answer, len(claims))
	for _, claim := range claims {
		group.Go(func() {
			uid, answer := work(claim)
			mutex.Lock()
			defer mutex.Unlock()
			answers[uid] = answer
		})
	}
	group.Wait()
	return answers
}

// hold holds a claim's lock until the answer is called. Locks stay: a bench makes a thousand.
func (d *driver) hold(uid types.UID) (release func()) {
	lock, _ := d.locks.LoadOrStore(uid, &sync.Mutex{})
	mutex := lock.(*sync.Mutex)
	mutex.Lock()
	return mutex.Unlock
}

func run() error {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	node := flag.String("node-name", "", "the node it stands for")
	name := flag.String("driver-name", "", "the driver whose claims it prepares")
	plugin := flag.String("plugin-dir", "", "its socket and records")
	registry := flag.String("registry-dir", "", "where the kubelet looks for plugins")
	specs := flag.String("cdi-dir", "", "where CDI specs go")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // no limit of its own
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	records := filepath.Join(*plugin, "claims")
	if err := errors.Join(os.MkdirAll(records, 0o755), os.MkdirAll(*specs, 0o755)); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	helper, err := kubeletplugin.Start(ctx,
		&driver{name: *name, records: records, specs: *specs},
		kubeletplugin.KubeClient(client), kubeletplugin.DriverName(*name), kubeletplugin.NodeName(*node),
		kubeletplugin.PluginDataDirectoryPath(*plugin), kubeletplugin.RegistrarDirectoryPath(*registry),
		kubeletplugin.Serialize(false), kubeletplugin.HealthService(false))
	if err == nil {
		<-ctx.Done()
		helper.Stop()
	}
	return err
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
