"""Fingerprints of the methods of PySyncObj that this package replaces or relies on: sha256 of their source.

A test compares them with the installed version, so that an upgrade of the library cannot slip by: whoever raises the
pin reads what changed, sees in tests/simulation which defects are gone, and writes the table anew.
"""

from typing import Final

PINNED: Final = "0.3.17"
RELIED_ON: Final = frozenset(
    {
        "_SyncObj__getCurrentLogTerm",
        "_SyncObj__onSetCodeVersion",
        "_SyncObj__setCurrentTerm",
        "_SyncObj__setState",
        "__init__",
        "doTick",
    }
)
"""Not replaced, but called or counted on."""
UPSTREAM: Final[dict[str, str]] = {
    "_SyncObj__applyLogEntries": "073db677773b5a2dddf17cc51f84ac8803ed456da0f0011e15240d6bd1600684",
    "_SyncObj__changeCluster": "66b42884f9d2dbd1d27daaf1e1aa93d97c8969705b782b4837b7741d94746da6",
    "_SyncObj__deleteEntriesTo": "b7b29988856a66b359c875b708f9dd8a056d29436507013592f5ec307e624faa",
    "_SyncObj__doApplyCommand": "1ea7aa506e950d0aecc7aa7ea750a6fc1164cbff9b208784fe4724dfe1ec91dc",
    "_SyncObj__doChangeCluster": "247d4d4101b8cd3ce82232ec9cf69d3556c78df7e6d0002a277d38676e630350",
    "_SyncObj__generateRaftTimeout": "92ed37d3620e781a15680bc5af8a1983a2c265c42aef4322d403001319bbb1a7",
    "_SyncObj__getCurrentLogTerm": "1cb8867e6a13d3976c07506c31d71681bc4921334dda8c5958da5d91f2e939ac",
    "_SyncObj__loadDumpFile": "ec66e83905de703bcead2735be875e71870a6bbe271c854867611e555a90bbba",
    "_SyncObj__onBecomeLeader": "5a3fd97bc17dc1cf3070b007538b6a8d46adb71f0b6523f3922dc953420645e8",
    "_SyncObj__onMessageReceived": "ddfe34b6c02821795146dc533fb7c0fcf6574a082a68a227b4c885c9e14be206",
    "_SyncObj__onNodeConnected": "2655afb481b4c69b9b33d827d3ea1299c54785997d0762ced03e324a7754cf70",
    "_SyncObj__onNodeDisconnected": "a81c0475ba2218cc4732ab756b39e64ec22e8d9f3ff5987bc34649f9a2536c95",
    "_SyncObj__onReadonlyNodeConnected": "88ae4a6d8750783835b3c3414961236e89106421c08ffb36562b5c8d058c2c2e",
    "_SyncObj__onReadonlyNodeDisconnected": "9dc1fe5296c63ca7454aa55e432b0a3ee6a8a9ce3086027ff899a37932212552",
    "_SyncObj__onSetCodeVersion": "17b050edb193c8537da50ede2bbffc111545449582103d78bf194061f28f73e9",
    "_SyncObj__parseChangeClusterRequest": "b2d5d695b12e592fd32dc956415884096f7d13cd8f7b2cf69d4b8d3c2bb0178f",
    "_SyncObj__sendAppendEntries": "9cb9073128c392fa9e5efc4691420ba435bfafb4c74e83a34f931fa16aa760c6",
    "_SyncObj__sendNextNodeIdx": "68aaeefc267b8896bc1074280ac2aa014c3306d9f207949ed945569cef5d114c",
    "_SyncObj__setCurrentTerm": "0ad5bf456ac06bd314d2dbc8991c6b6240e63bf33aaa975620aa84a7079d5f39",
    "_SyncObj__setState": "2c1f239f7bd79b3945b63418b4f564c40c07893d3cf747af2ddd5c6a045093a8",
    "_SyncObj__tryLogCompaction": "c2f8a0ec14cc7312e3ff41a16cde9be71ff0f908bd66aec9e2673d97a775be2c",
    "_SyncObj__updateClusterConfiguration": "e2de42f3d1a46c962435731d2f0de4bc899aae7d3611163a205df4ef926c7ae4",
    "__init__": "09df12cd7fd7d7270fee82c1a025acc1f3a68e98dafbad81be467947ab95cbf0",
    "_addNodeToCluster": "1052d05207626fff4a9b98365c5c7aea882a07a6dfcb07373b7f61a168c6b2f2",
    "_applyCommand": "827f207d515b2d64cce9033f558ca15033e8886cd917b96a29c888327403bbe2",
    "_autoTickThread": "0edc1a54be46aed237703fca428ad482f0a8a626c1865cb12ba4e7b58946cc8d",
    "_checkCommandsToApply": "a386a8079361d204f2c11f895416548c432a254671a9114258921c25108a966e",
    "_onTick": "cc9eb08232d005ba4e21a33ec453e5d02fe3537dadebda8571406c57f65a3c37",
    "_removeNodeFromCluster": "dfd1ddfdeb62d45dfe2e81d23832c739b83e07da742bf994a180b7f423835de5",
    "_setCodeVersion": "50bb678a18be46c950529e5e0268dca53baab4bfd58c71f9c7611e65bce864cf",
    "_transferLeadership": "9eb7da3a81694ac1868d03e96be931a5fea9e75e6f337b30748947102747d7bb",
    "addNodeToCluster": "409209c3165ec2dc83dca52c2a7399084299dc5842ddc12e2a5f72581cca63b6",
    "doTick": "bef78c2ba06d784beb0d5567259afab1a7043d4f8a5d3a565231ed456f57e4f4",
    "forceLogCompaction": "00154a6c3c10682490cc539f63b73357d367a28c0ecb0c3fa52a3d02d59b0408",
    "removeNodeFromCluster": "a655f3c1f147299823a8152d7ed9e15b5812af2d264fca8dc8c667faf9566877",
    "setCodeVersion": "a157058e46debd78997dc315805a8e32073e5403b61a746374e36ea89bcb85a6",
    "transferLeadership": "c3ac67963962d9aa847c52e6331403ca86596707869eced2438472b7ccd3fae2",
}
"""Name in the class → fingerprint."""
FIELDS: Final = frozenset(
    {
        "_SyncObj__commandsWaitingCommit",
        "_SyncObj__connectedNodes",
        "_SyncObj__newAppendEntriesTime",
        "_SyncObj__noopIDx",
        "_SyncObj__otherNodes",
        "_SyncObj__raftCommitIndex",
        "_SyncObj__raftCurrentTerm",
        "_SyncObj__raftElectionDeadline",
        "_SyncObj__raftLastApplied",
        "_SyncObj__raftLeader",
        "_SyncObj__raftLog",
        "_SyncObj__raftState",
        "_SyncObj__selfNode",
        "_SyncObj__transport",
        "_SyncObj__votedForNodeId",
    }
)
"""State of the base class that this package reads or writes; its constructor, whose fingerprint is above, makes it."""
CLASSES: Final[dict[str, str]] = {
    "pysyncobj.SyncObjConf": "e8d5f06ea6435e2c5f8f420d39919b40d6ae39ed6d19d62a083689a15d7b2dcc",
    "pysyncobj.journal.Journal": "8375f2a66c8600e60941150f83d63fdc29c547bf8bc1aaca18edde38e12a7f03",
    "pysyncobj.node.Node": "08d57d1bfde2aca1e455574b96d7871f5c645b31733ef9aaf5f18d0e55356b85",
    "pysyncobj.transport.Transport": "9b0212a7af6123e740c74cf64af362e4d0e54efd3e1792330436199ce7f5ed9f",
}
"""Classes of the library that this package inherits from or uses as they are → fingerprint."""
