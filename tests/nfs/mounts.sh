# A server and two hosts, `h1` and `h2`, in network namespaces of one machine; both mount its export with default options.
# Run in the machine of tests/nfs/machine.py: MODULES is where `modprobe -d` finds them.
set -e
mount -t tmpfs tmpfs /run
mkdir -p /dev/pts /dev/shm /run/export /run/h1 /run/h2 /run/netns /run/rpc_pipefs
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
for module in loop ext4 veth bridge nfsd nfs nfsv4; do modprobe -d "$MODULES" "$module"; done
truncate -s 96M /run/export.img
mkfs.ext4 -q -F /run/export.img
mount -o loop /run/export.img /run/export
chmod 777 /run/export
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs rpc /run/rpc_pipefs
mount -t tmpfs tmpfs /var/lib/nfs
mkdir -p /var/lib/nfs/{sm,sm.bak,v4recovery,rpc_pipefs}
: >/var/lib/nfs/etab
: >/var/lib/nfs/rmtab
ip link set lo up
ip link add br0 type bridge
ip addr add 10.99.0.1/24 dev br0
ip link set br0 up
for host in 1 2; do
  ip netns add "h$host"
  ip link add "v$host" type veth peer name eth0 netns "h$host"
  ip link set "v$host" master br0 up
  ip -n "h$host" addr add "10.99.0.1$host/24" dev eth0
  ip -n "h$host" link set eth0 up
  ip -n "h$host" link set lo up
done
rpcbind -w 2>/dev/null || true
echo 10 >/proc/fs/nfsd/nfsv4gracetime
echo 15 >/proc/fs/nfsd/nfsv4leasetime
exportfs -o rw,no_root_squash,sync,no_subtree_check,fsid=0 10.99.0.0/24:/run/export
rpc.mountd
rpc.nfsd 4
for host in h1 h2; do # each with a name of its own: the server tells its clients apart by it
  nsenter --net="/run/netns/$host" unshare --uts sh -c \
    "hostname $host; exec mount -t nfs -o vers=4.2 10.99.0.1:/ /run/$host"
done
